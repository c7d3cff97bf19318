// SPDX-License-Identifier: GPL-2.0

//! Every reachable state of a queue pair, and the effect of each request and event on it, as a text
//! (lifecycle.txt): for each of them and each phase, the changes and the actions. Brackets name the
//! other parts of the state that decide the effect; those not named make no difference.
//!
//! A change of the state machine shows as a change of that file. `LIFECYCLE=write cargo test --test
//! lifecycle` writes it anew.

use std::{
    collections::{
        BTreeMap,
        BTreeSet, //
    },
    fmt::Write,
    fs, //
};

use iwarp::{
    actions::Actions,
    lifecycle::{
        Event,
        Lifecycle,
        QpPhase,
        QpRequest,
        Refused, //
    }, //
};

/// What may happen to a queue pair.
#[derive(Clone, Copy, PartialEq)]
enum Input {
    Request(QpRequest),
    Event(Event),
}

impl Input {
    /// Returns all of them.
    fn all() -> impl Iterator<Item = Self> {
        let requests = QpRequest::ALL.into_iter().map(Self::Request);
        requests.chain(Event::ALL.into_iter().map(Self::Event))
    }

    fn name(self) -> String {
        match self {
            Self::Request(request) => format!("{request:?}"),
            Self::Event(event) => format!("{event:?}"),
        }
    }

    fn on(self, state: Lifecycle) -> Result<(Lifecycle, Actions), Refused> {
        match self {
            Self::Request(request) => state.request(request),
            Self::Event(event) => Ok(state.on(event)),
        }
    }
}

/// Its name, and its value in a state.
type Qualifier = (&'static str, fn(Lifecycle) -> String);

/// What may decide the effect of an event besides the phase.
const QUALIFIERS: [Qualifier; 6] = [
    ("path", |state| state.is_by_path().to_string()),
    ("requested", |state| format!("{:?}", state.requested())),
    ("peer closed", |state| state.is_peer_closed().to_string()),
    ("may send", |state| state.may_send().to_string()),
    ("waits for Reads", |state| {
        state.waits_for_reads().to_string()
    }),
    ("first failure", |state| {
        format!("{:?}", state.first_failure())
    }),
];

/// Returns the effect of an input on a state: the new phase, the other changes, the actions.
fn outcome(state: Lifecycle, input: Input) -> String {
    let Ok((next, actions)) = input.on(state) else {
        return "refused".into();
    };
    let mut parts = vec![];
    if next.phase() != state.phase() {
        parts.push(format!("{:?}", next.phase()));
    }
    for (name, value) in QUALIFIERS {
        let (is, was) = (value(next), value(state));
        // A reset returns everything to the values of a new queue pair.
        if is != was && input != Input::Request(QpRequest::ResetEnd) {
            parts.push(format!("{name} {is}"));
        }
    }
    let actions: Vec<_> = actions.names().collect();
    if !actions.is_empty() {
        parts.push(format!("({})", actions.join(", ")));
    }
    match parts.is_empty() {
        true => "-".into(),
        false => parts.join(", "),
    }
}

/// Returns all reachable states, by phase.
fn reachable() -> BTreeMap<QpPhase, Vec<Lifecycle>> {
    let mut found = BTreeSet::from([Lifecycle::NEW.to_raw()]);
    let mut open = vec![Lifecycle::NEW];
    let mut by_phase = BTreeMap::from(QpPhase::ALL.map(|phase| (phase, vec![])));
    while let Some(state) = open.pop() {
        by_phase.get_mut(&state.phase()).unwrap().push(state);
        let steps = Input::all().filter_map(|input| input.on(state).ok());
        let steps = steps.map(|(next, _)| next);
        // A request waits for Reads, or no longer, and all is flushed.
        let others = [
            state.with_read_wait(true),
            state.with_read_wait(false),
            state.flushed(),
        ];
        for next in steps.chain(others) {
            if found.insert(next.to_raw()) {
                open.push(next);
            }
        }
    }
    by_phase
}

/// Returns the effect of the input on the states of one phase: a line for each combination of the
/// fewest qualifiers that decide it.
fn cases(states: &[Lifecycle], input: Input) -> BTreeMap<String, String> {
    let mut choices: Vec<u32> = (0..1 << QUALIFIERS.len()).collect();
    choices.sort_by_key(|choice| choice.count_ones());
    for choice in choices {
        let chosen = |index: usize| choice & (1 << index) != 0;
        let mut cases = BTreeMap::new();
        let decided = states.iter().all(|state| {
            let qualifiers = QUALIFIERS.iter().enumerate();
            let values = qualifiers
                .filter(|(index, _)| chosen(*index))
                .map(|(_, (name, value))| format!("{name} {}", value(*state)));
            let outcome = outcome(*state, input);
            let case: Vec<_> = values.collect();
            *cases.entry(case.join(", ")).or_insert(outcome.clone()) == outcome
        });
        if decided {
            return cases;
        }
    }
    unreachable!("all qualifiers together are the state");
}

fn table() -> String {
    let mut table = String::new();
    let reachable = reachable();
    for input in Input::all() {
        writeln!(table, "{}", input.name()).unwrap();
        for (phase, states) in &reachable {
            for (case, outcome) in cases(states, input) {
                let case = match case.is_empty() {
                    true => case,
                    false => format!(" [{case}]"),
                };
                writeln!(table, "  {phase:?}{case}: {outcome}").unwrap();
            }
        }
    }
    table
}

#[test]
fn lifecycle_matches_its_snapshot() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lifecycle.txt");
    let table = table();
    if std::env::var_os("LIFECYCLE").is_some() {
        fs::write(path, &table).unwrap();
    }
    let written = fs::read_to_string(path).unwrap();
    for (line, (is, was)) in table.lines().zip(written.lines()).enumerate() {
        assert_eq!(is, was, "line {} of lifecycle.txt", line + 1);
    }
    assert_eq!(table.lines().count(), written.lines().count());
}
