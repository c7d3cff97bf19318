// SPDX-License-Identifier: GPL-2.0

//! The rules by which requests, messages and verbs fail: their text, and what they hit.

use iwarp::inject::{
    Mistake,
    Operation,
    Point,
    Rule,
    RuleCounts,
    StreamSubject,
    Subject,
    Verb,
    COMM_LEN,
    MAX_LINE,
    MAX_RULES, //
};

use crate::source::Source;

/// Parses the lines before the first zero octet as rules, and asks those that are rules about the
/// requests, messages and calls that the octets behind it choose.
pub fn run(octets: &[u8]) {
    let end = octets.iter().position(|octet| *octet == 0);
    let (text, choices) = octets.split_at(end.unwrap_or(octets.len()));
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let mut source = Source::new(choices);
    let mut subjects = Vec::new();
    while !source.is_empty() && subjects.len() < 64 {
        subjects.push(subject(&mut source));
    }
    let rules: Vec<Rule> = text.lines().filter_map(parse).take(MAX_RULES).collect();
    let [mut stream, mut device] = [RuleCounts::default(); 2];
    for subject in &subjects {
        // What the first rule hits does not depend on those behind it.
        let [mut alone, mut shared] = [stream, device];
        let first = rules.iter().take(1);
        let of_first = alone.count(&mut shared, first, subject);
        let found = stream.count(&mut device, &rules, subject);
        assert_eq!(of_first, found.filter(|(place, _)| *place == 0));
        if let Some((place, action)) = found {
            assert_eq!(action, rules[place].action());
        }
    }
}

fn subject(source: &mut Source<'_>) -> Subject {
    let mut comm = [0; COMM_LEN];
    comm[0] = b'a' + (source.u8() % 3);
    let points = [
        Point::Post,
        Point::Send,
        Point::Receive,
        Point::Complete,
        Point::Connect,
        Point::Request,
        Point::Verb(Verb::CreateQp),
        Point::Verb(Verb::ModifyQp),
        Point::Verb(Verb::PostSend),
    ];
    let point = source.choose(&points);
    let stream = StreamSubject {
        ports: (1, 4420),
        peer: source.choose(&["10.0.0.2".parse().unwrap(), "::1".parse().unwrap()]),
        operation: source.choose(&[
            None,
            Some(Operation::Send),
            Some(Operation::Write),
            Some(Operation::Read),
            Some(Operation::Atomic),
        ]),
        len: u32::from(source.u8() % 2),
        is_divisible: source.u8() % 2 == 0,
    };
    Subject {
        point,
        qp: (point != Point::Verb(Verb::CreateQp)).then(|| u32::from(source.u8() % 4)),
        comm: source.choose(&[None, Some(comm)]),
        stream: (!matches!(point, Point::Verb(_))).then_some(stream),
    }
}

/// Parses a line, whose words may be in any order.
fn parse(line: &str) -> Option<Rule> {
    let parsed = Rule::parse(line);
    if let Err(mistake) = parsed {
        let (what, word) = mistake.describe();
        assert!(!what.is_empty() && line.contains(word));
        assert_eq!(mistake == Mistake::TooLong, line.len() > MAX_LINE);
    }
    let mut words: Vec<&str> = line.split_ascii_whitespace().collect();
    words.reverse();
    let reversed = words.join(" ");
    if line.len() <= MAX_LINE {
        assert_eq!(parsed.ok(), Rule::parse(&reversed).ok());
    }
    parsed.ok()
}
