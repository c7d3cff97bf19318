// SPDX-License-Identifier: GPL-2.0

//! Rules that let requests fail: what they say, and which requests they hit.

use iwarp::fault::ErrorCode;
use iwarp::inject::{
    Mistake, Operation, Rule, RuleAction, RuleCounts, StatusEnd, Subject, MAX_LINE, MAX_RULES,
};

fn subject() -> Subject {
    Subject {
        qp: 17,
        ports: (40000, 4420),
        peer: "10.0.0.2".parse().unwrap(),
        operation: Operation::Write,
    }
}

fn rule(line: &str) -> Rule {
    Rule::parse(line).unwrap_or_else(|mistake| panic!("{line}: {mistake:?}"))
}

/// The numbers of the first requests that the rules hit, with the place of the rule.
fn hits(rules: &[Rule], subject: &Subject, requests: u32) -> Vec<(u32, usize)> {
    let mut counts = RuleCounts::default();
    (1..=requests)
        .filter_map(|number| Some((number, counts.count(rules, subject)?.0)))
        .collect()
}

fn numbers(line: &str, requests: u32) -> Vec<u32> {
    hits(&[rule(line)], &subject(), requests)
        .into_iter()
        .map(|(number, _)| number)
        .collect()
}

#[test]
fn a_rule_hits_the_requests_that_it_names() {
    assert_eq!(numbers("do=reset", 3), [1, 2, 3]);
    assert_eq!(numbers("nth=3 do=reset", 10), [3]);
    assert_eq!(numbers("every=4 do=reset", 13), [4, 8, 12]);
    assert_eq!(numbers("every=2 times=2 do=reset", 13), [2, 4]);
    assert_eq!(numbers("p=1 times=1 do=reset", 5), [1]);
}

#[test]
fn a_rule_is_about_what_its_words_say() {
    for (line, is_about) in [
        ("qp=17", true),
        ("qp=0x11", true),
        ("qp=18", false),
        ("port=4420", true),
        ("port=40000", true),
        ("port=4421", false),
        ("peer=10.0.0.2", true),
        ("peer=10.0.0.3", false),
        ("peer=fd00::2", false),
        ("op=write", true),
        ("op=send", false),
        ("op=read", false),
        ("op=atomic", false),
        ("qp=17 port=4420 peer=10.0.0.2 op=write", true),
        ("qp=17 port=4420 peer=10.0.0.2 op=send", false),
    ] {
        assert_eq!(
            !numbers(&format!("{line} do=fin"), 1).is_empty(),
            is_about,
            "{line}"
        );
    }
    let v6 = Subject {
        peer: "fd00::2".parse().unwrap(),
        operation: Operation::Atomic,
        ..subject()
    };
    assert_eq!(
        hits(&[rule("peer=fd00::2 op=atomic do=fin")], &v6, 1),
        [(1, 0)]
    );
}

#[test]
fn only_requests_that_it_is_about_count() {
    let rules = [rule("op=send nth=2 do=fin")];
    let mut counts = RuleCounts::default();
    let send = Subject {
        operation: Operation::Send,
        ..subject()
    };
    for (subject, hit) in [
        (subject(), false),
        (send, false),
        (subject(), false),
        (send, true),
        (send, false),
    ] {
        assert_eq!(counts.count(&rules, &subject).is_some(), hit);
    }
}

#[test]
fn the_first_rule_wins_and_all_count() {
    let rules = [
        rule("nth=2 do=reset"),
        rule("every=2 do=fin"),
        rule("nth=2 do=fin"),
    ];
    assert_eq!(hits(&rules, &subject(), 4), [(2, 0), (4, 1)]);
    let many: Vec<Rule> = (1..=MAX_RULES)
        .map(|nth| rule(&format!("nth={nth} do=fin")))
        .collect();
    let expected: Vec<(u32, usize)> = (0..MAX_RULES)
        .map(|place| (place as u32 + 1, place))
        .collect();
    assert_eq!(hits(&many, &subject(), 100), expected);
}

#[test]
fn chance_follows_its_seed_and_its_probability() {
    let first = numbers("p=0.01 seed=7 do=fin", 100_000);
    assert!((800..1200).contains(&first.len()), "{}", first.len());
    assert_eq!(first, numbers("p=0.01 seed=7 do=fin", 100_000));
    assert_ne!(first, numbers("p=0.01 seed=8 do=fin", 100_000));
    assert_eq!(
        numbers("p=0.01 do=fin", 100_000),
        numbers("p=0.010 seed=0 do=fin", 100_000)
    );
    let half = numbers("p=0.5 do=fin", 10_000).len();
    assert!((4700..5300).contains(&half), "{half}");
}

#[test]
fn actions_are_read() {
    let action = |line| rule(line).action();
    assert_eq!(action("do=reset"), RuleAction::Reset);
    assert_eq!(action("do=fin"), RuleAction::Fin);
    assert_eq!(
        action("do=terminate=0x11203"),
        RuleAction::Terminate(ErrorCode {
            layer: 1,
            etype: 2,
            code: 3
        })
    );
    for (line, status, vendor, end) in [
        ("do=status=LOC_LEN_ERR", 1, 0, StatusEnd::Terminate),
        (
            "do=status=REM_ACCESS_ERR vendor=0x10101",
            10,
            0x10101,
            StatusEnd::Fin,
        ),
        ("vendor=7 do=status=RETRY_EXC_ERR", 12, 7, StatusEnd::Reset),
        ("quiet do=status=GENERAL_ERR", 21, 0, StatusEnd::Nothing),
    ] {
        assert_eq!(
            action(line),
            RuleAction::Status {
                status,
                vendor,
                end
            },
            "{line}"
        );
    }
}

#[test]
fn mistakes_name_the_word() {
    let long = format!("do=reset {}", " ".repeat(MAX_LINE));
    for (line, mistake) in [
        ("", Mistake::NoAction),
        ("qp=1", Mistake::NoAction),
        ("dox=reset", Mistake::Unknown("dox=reset")),
        ("quiet=1 do=reset", Mistake::Unknown("quiet=1")),
        ("qp=x do=reset", Mistake::Value("qp=x")),
        ("qp=4294967296 do=reset", Mistake::Value("qp=4294967296")),
        ("port=65536 do=reset", Mistake::Value("port=65536")),
        ("peer=host do=reset", Mistake::Value("peer=host")),
        ("op=flush do=reset", Mistake::Value("op=flush")),
        ("nth=0 do=reset", Mistake::Value("nth=0")),
        ("every=0 do=reset", Mistake::Value("every=0")),
        ("times=0 do=reset", Mistake::Value("times=0")),
        ("p=0 do=reset", Mistake::Value("p=0")),
        ("p=0.0 do=reset", Mistake::Value("p=0.0")),
        ("p=1.5 do=reset", Mistake::Value("p=1.5")),
        ("p=0. do=reset", Mistake::Value("p=0.")),
        ("p=0.+1 do=reset", Mistake::Value("p=0.+1")),
        ("p=0.0000000001 do=reset", Mistake::Value("p=0.0000000001")),
        ("do=explode", Mistake::Value("do=explode")),
        ("do=status=SUCCESS", Mistake::Value("do=status=SUCCESS")),
        (
            "do=status=WR_FLUSH_ERR",
            Mistake::Value("do=status=WR_FLUSH_ERR"),
        ),
        (
            "do=terminate=0x21203",
            Mistake::Value("do=terminate=0x21203"),
        ),
        ("do=terminate=5", Mistake::Value("do=terminate=5")),
        ("qp=1 qp=2 do=reset", Mistake::Conflict("qp=2")),
        ("do=reset do=fin", Mistake::Conflict("do=fin")),
        ("nth=1 every=2 do=reset", Mistake::Conflict("every=2")),
        ("nth=1 seed=2 do=reset", Mistake::Conflict("seed")),
        ("vendor=1 do=reset", Mistake::Conflict("vendor")),
        ("quiet do=fin", Mistake::Conflict("quiet")),
        (&long, Mistake::TooLong),
    ] {
        assert_eq!(Rule::parse(line), Err(mistake), "{line}");
    }
    assert_eq!(Mistake::Value("qp=x").describe(), ("wrong value", "qp=x"));
}

/// Whatever is written: no panic, and what is a rule can be counted.
#[test]
fn any_text_is_a_rule_or_a_mistake() {
    bolero::check!().for_each(|octets: &[u8]| {
        let Ok(text) = core::str::from_utf8(octets) else {
            return;
        };
        if let Ok(rule) = Rule::parse(text) {
            let mut counts = RuleCounts::default();
            for _ in 0..3 {
                counts.count(&[rule], &subject());
            }
        }
    });
    // Of the words that there are, which chance would hardly find.
    let words = [
        "qp=17",
        "port=4420",
        "peer=10.0.0.2",
        "peer=::",
        "op=write",
        "nth=1",
        "every=2",
        "p=0.5",
        "seed=3",
        "times=1",
        "do=reset",
        "do=fin",
        "do=terminate=0x10000",
        "do=status=GENERAL_ERR",
        "vendor=1",
        "quiet",
        "x",
        "p=0.999999999",
    ];
    bolero::check!().with_type::<Vec<u8>>().for_each(|places| {
        let line: Vec<&str> = places
            .iter()
            .take(12)
            .map(|place| words[usize::from(*place) % words.len()])
            .collect();
        if let Ok(rule) = Rule::parse(&line.join(" ")) {
            RuleCounts::default().count(&[rule], &subject());
        }
    });
}
