// SPDX-License-Identifier: GPL-2.0

//! Rules by which requests and messages fail: what they say, and what they hit.

use iwarp::fault::ErrorCode;
use iwarp::inject::{
    AsyncEvent, ConnAction, Corruption, EventSource, Interruption, Mistake, Operation, Point, Rule,
    RuleAction, RuleCounts, StatusEnd, StreamSubject, Subject, Verb, MAX_LINE, MAX_RULES,
};

fn stream() -> StreamSubject {
    StreamSubject {
        ports: (40000, 4420),
        peer: "10.0.0.2".parse().unwrap(),
        operation: Some(Operation::Write),
        len: 64,
        is_divisible: true,
    }
}

/// A request.
fn subject() -> Subject {
    Subject {
        point: Point::Send,
        qp: Some(17),
        comm: Some(*b"ib_write_bw\0\0\0\0\0"),
        stream: Some(stream()),
    }
}

fn with_operation(operation: Operation, subject: Subject) -> Subject {
    Subject {
        stream: Some(StreamSubject {
            operation: Some(operation),
            ..stream()
        }),
        ..subject
    }
}

/// A message of the peer.
fn arrived() -> Subject {
    Subject {
        point: Point::Receive,
        ..with_operation(Operation::Send, subject())
    }
}

/// A call of a verb by a process.
fn call(verb: Verb, qp: Option<u32>) -> Subject {
    Subject {
        point: Point::Verb(verb),
        qp,
        stream: None,
        ..subject()
    }
}

fn rule(line: &str) -> Rule {
    Rule::parse(line).unwrap_or_else(|mistake| panic!("{line}: {mistake:?}"))
}

/// The numbers of the first requests that the rules hit, with the place of the rule.
fn hits(rules: &[Rule], subject: &Subject, requests: u32) -> Vec<(u32, usize)> {
    let [mut stream, mut device] = [RuleCounts::default(); 2];
    (1..=requests)
        .filter_map(|number| Some((number, stream.count(&mut device, rules, subject)?.0)))
        .collect()
}

fn numbers(line: &str, requests: u32) -> Vec<u32> {
    hits(&[rule(line)], &subject(), requests)
        .into_iter()
        .map(|(number, _)| number)
        .collect()
}

#[test]
fn rule_matches_named_requests() {
    assert_eq!(numbers("do=reset", 3), [1, 2, 3]);
    assert_eq!(numbers("nth=3 do=reset", 10), [3]);
    assert_eq!(numbers("every=4 do=reset", 13), [4, 8, 12]);
    assert_eq!(numbers("every=2 times=2 do=reset", 13), [2, 4]);
    assert_eq!(numbers("p=1 times=1 do=reset", 5), [1]);
}

#[test]
fn rule_matches_by_its_conditions() {
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
        ("comm=ib_write_bw", true),
        ("comm=ib_write_b", false),
        ("comm=ib_write_bwx", false),
        ("on=send", true),
        ("on=recv", false),
        ("op=write", true),
        ("op=send", false),
        ("op=read", false),
        ("op=atomic", false),
        ("qp=17 port=4420 peer=10.0.0.2 op=write", true),
        ("qp=17 port=4420 peer=10.0.0.2 op=send", false),
        ("qp=17 comm=ib_write_bw on=send op=write", true),
        ("qp=18 comm=ib_write_bw on=send op=write", false),
    ] {
        assert_eq!(
            !numbers(&format!("{line} do=fin"), 1).is_empty(),
            is_about,
            "{line}"
        );
    }
    let v6 = Subject {
        stream: Some(StreamSubject {
            peer: "fd00::2".parse().unwrap(),
            operation: Some(Operation::Atomic),
            ..stream()
        }),
        ..subject()
    };
    assert_eq!(
        hits(&[rule("peer=fd00::2 op=atomic do=fin")], &v6, 1),
        [(1, 0)]
    );
    let kernel = Subject {
        comm: None,
        ..subject()
    };
    assert_eq!(hits(&[rule("comm=ib_write_bw do=fin")], &kernel, 1), []);
}

#[test]
fn inbound_messages_are_counted_by_recv_rules() {
    let about = |line: &str, subject: &Subject| !hits(&[rule(line)], subject, 1).is_empty();
    assert!(about("on=recv do=fin", &arrived()));
    assert!(!about("do=fin", &arrived()) && !about("on=recv do=fin", &subject()));
    // What takes a receive.
    let write = with_operation(Operation::Write, arrived());
    for line in ["on=recv do=no-receive", "on=recv do=status=LOC_LEN_ERR"] {
        assert!(about(line, &arrived()) && !about(line, &write), "{line}");
    }
    assert!(about("on=recv op=write do=delay=1s", &write));
    let done = Subject {
        point: Point::Complete,
        ..subject()
    };
    for action in ["status=LOC_LEN_ERR quiet", "delay=1s", "silent"] {
        let line = format!("on=complete do={action}");
        assert!(about(&line, &done) && !about(&line, &subject()), "{line}");
    }
}

#[test]
fn posted_requests_are_counted_by_post_rules() {
    let about = |line: &str, subject: &Subject| !hits(&[rule(line)], subject, 1).is_empty();
    let posted = Subject {
        point: Point::Post,
        ..subject()
    };
    for action in ["status=LOC_QP_OP_ERR", "reset", "delay=1s", "event=CQ_ERR"] {
        let line = format!("on=post op=write do={action}");
        assert!(about(&line, &posted) && !about(&line, &subject()), "{line}");
    }
    assert!(!about("do=reset", &posted));
    // The call itself fails.
    let line = "on=post kernel=yes do=errno=EIO";
    let called = Subject {
        comm: None,
        ..call(Verb::PostSend, Some(17))
    };
    assert!(about(line, &called) && !about(line, &posted));
}

#[test]
fn rule_with_offset_stops_only_longer_messages() {
    let about = |line: &str, subject: &Subject| !hits(&[rule(line)], subject, 1).is_empty();
    assert!(about("after=63 do=reset", &subject()));
    assert!(!about("after=64 do=reset", &subject()));
    let whole = Subject {
        stream: Some(StreamSubject {
            is_divisible: false,
            ..stream()
        }),
        ..subject()
    };
    assert!(!about("after=63 do=reset", &whole) && about("do=reset", &whole));
}

#[test]
fn verb_rule_counts_calls_per_device() {
    let rules = [rule("on=create_qp nth=2 do=errno=ENOMEM")];
    let made = call(Verb::CreateQp, None);
    assert_eq!(
        hits(&rules, &call(Verb::CreateCq, None), 3)
            .into_iter()
            .chain(hits(&rules, &subject(), 3))
            .count(),
        0
    );
    let mut device = RuleCounts::default();
    // What a stream counts is not asked for.
    let mut hit = || RuleCounts::default().count(&mut device, &rules, &made);
    assert_eq!(hit(), None);
    assert_eq!(hit(), Some((0, RuleAction::Errno(12))));
    assert_eq!(hit(), None);
}

#[test]
fn connect_rule_counts_per_device() {
    let connection = |point| Subject {
        point,
        stream: Some(StreamSubject {
            operation: None,
            ..stream()
        }),
        ..subject()
    };
    let about = |line: &str, subject: &Subject| !hits(&[rule(line)], subject, 1).is_empty();
    let (made, asked) = (connection(Point::Connect), connection(Point::Request));
    for (line, of_made, of_asked) in [
        ("on=connect do=unreachable", true, false),
        ("on=request do=drop-reply", false, true),
        (
            "on=connect port=4420 peer=10.0.0.2 qp=17 do=remove",
            true,
            false,
        ),
        ("on=connect comm=ib_write_bw do=remove", true, false),
        ("on=connect qp=18 do=remove", false, false),
        ("on=request port=4420 peer=10.0.0.2 do=remove", false, true),
        ("on=request port=4421 do=remove", false, false),
        ("do=fin", false, false),
    ] {
        assert_eq!(about(line, &made), of_made, "{line}");
        assert_eq!(about(line, &asked), of_asked, "{line}");
    }
    let rules = [rule("on=request nth=2 do=slow=1s")];
    let mut device = RuleCounts::default();
    let mut hit = || RuleCounts::default().count(&mut device, &rules, &asked);
    assert_eq!((hit(), hit().is_some(), hit()), (None, true, None));
}

#[test]
fn verb_rule_matches_by_process() {
    let about = |line: &str, subject: &Subject| !hits(&[rule(line)], subject, 1).is_empty();
    let kernel = |subject| Subject {
        comm: None,
        ..subject
    };
    let made = call(Verb::CreateCq, None);
    for (line, by_process, by_kernel) in [
        ("on=create_cq do=errno=EIO", true, true),
        ("on=create_cq comm=ib_write_bw do=errno=EIO", true, false),
        ("on=create_cq comm=ib_read_bw do=errno=EIO", false, false),
    ] {
        assert_eq!(about(line, &made), by_process, "{line}");
        assert_eq!(about(line, &kernel(made)), by_kernel, "{line}");
    }
    let changed = call(Verb::ModifyQp, Some(17));
    assert!(about("on=modify_qp qp=17 do=errno=EIO", &changed));
    assert!(!about("on=modify_qp qp=18 do=errno=EIO", &changed));
    for verb in [Verb::PostSend, Verb::PostRecv] {
        let posted = call(verb, Some(17));
        let name = match verb {
            Verb::PostSend => "post_send",
            _ => "post_recv",
        };
        let line = format!("on={name} qp=17 kernel=yes do=errno=EIO");
        assert!(about(&line, &kernel(posted)) && !about(&line, &posted));
    }
}

#[test]
fn corruption_is_limited_to_user_payload_by_default() {
    let about = |line: &str, subject: &Subject| !hits(&[rule(line)], subject, 1).is_empty();
    let empty = Subject {
        stream: Some(StreamSubject { len: 0, ..stream() }),
        ..subject()
    };
    let kernel = Subject {
        comm: None,
        ..subject()
    };
    for (line, with_payload, without, of_kernel) in [
        ("do=corrupt", true, false, false),
        ("do=corrupt=crc", true, true, false),
        ("do=corrupt kernel=yes", true, false, true),
        ("do=corrupt=crc kernel=yes", true, true, true),
        ("do=delay=1s", true, true, true),
    ] {
        assert_eq!(about(line, &subject()), with_payload, "{line}");
        assert_eq!(about(line, &empty), without, "{line}");
        assert_eq!(about(line, &kernel), of_kernel, "{line}");
    }
}

#[test]
fn rule_scope_selects_the_counter() {
    let rules = [rule("nth=3 do=fin"), rule("nth=3 scope=device do=reset")];
    let [mut one, mut other, mut device] = [RuleCounts::default(); 3];
    let mut hit = |stream: &mut RuleCounts| stream.count(&mut device, &rules, &subject());
    assert_eq!((hit(&mut one), hit(&mut other)), (None, None));
    assert_eq!(hit(&mut other), Some((1, RuleAction::Reset)));
    assert_eq!(hit(&mut one), None);
    assert_eq!(hit(&mut one), Some((0, RuleAction::Fin)));
    assert_eq!(hit(&mut other), Some((0, RuleAction::Fin)));
}

#[test]
fn rule_counts_matching_requests_only() {
    let rules = [rule("op=send nth=2 do=fin")];
    let [mut counts, mut device] = [RuleCounts::default(); 2];
    let send = with_operation(Operation::Send, subject());
    for (subject, hit) in [
        (subject(), false),
        (send, false),
        (subject(), false),
        (send, true),
        (send, false),
    ] {
        assert_eq!(counts.count(&mut device, &rules, &subject).is_some(), hit);
    }
}

#[test]
fn first_matching_rule_applies_and_all_count() {
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
fn random_rule_follows_seed_and_probability() {
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
fn rule_actions_are_parsed() {
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
    for (line, expected) in [
        ("do=silent", RuleAction::Silent),
        (
            "op=send after=1 do=silent",
            RuleAction::Inside(1.try_into().unwrap(), Interruption::Silent),
        ),
        (
            "do=terminate=0x11203 after=9",
            RuleAction::Inside(
                9.try_into().unwrap(),
                Interruption::Terminate(ErrorCode {
                    layer: 1,
                    etype: 2,
                    code: 3,
                }),
            ),
        ),
        (
            "after=4294967295 do=reset",
            RuleAction::Inside(u32::MAX.try_into().unwrap(), Interruption::Reset),
        ),
        (
            "op=write after=2 do=fin",
            RuleAction::Inside(2.try_into().unwrap(), Interruption::Fin),
        ),
        (
            "after=2 do=delay=1s",
            RuleAction::Inside(
                2.try_into().unwrap(),
                Interruption::Delay(1000.try_into().unwrap()),
            ),
        ),
        ("on=recv do=no-receive", RuleAction::NoReceive),
        ("do=corrupt", RuleAction::Corrupt(Corruption::Payload)),
        ("do=corrupt=crc", RuleAction::Corrupt(Corruption::Crc)),
        ("do=delay=1ms", RuleAction::Delay(1.try_into().unwrap())),
        (
            "do=delay=3600s",
            RuleAction::Delay(3_600_000.try_into().unwrap()),
        ),
        ("do=rate=1000", RuleAction::Rate(1000.try_into().unwrap())),
        ("do=rate=20k", RuleAction::Rate(20_000.try_into().unwrap())),
        (
            "do=rate=3M",
            RuleAction::Rate(3_000_000.try_into().unwrap()),
        ),
        (
            "do=rate=1G",
            RuleAction::Rate(1_000_000_000.try_into().unwrap()),
        ),
    ] {
        assert_eq!(action(line), expected, "{line}");
    }
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
    for (line, of, number) in [
        ("do=event=CQ_ERR", EventSource::Cq, 0),
        ("on=recv do=event=SRQ_LIMIT_REACHED", EventSource::Srq, 15),
        ("on=complete do=event=PORT_ERR", EventSource::Port, 10),
        ("do=event=QP_LAST_WQE_REACHED", EventSource::Qp, 16),
    ] {
        let event = AsyncEvent { of, number };
        assert_eq!(action(line), RuleAction::Event(event), "{line}");
    }
    for (line, expected) in [
        (
            "on=connect do=reject=0x1020304",
            ConnAction::Reject([1, 2, 3, 4]),
        ),
        ("on=request do=reject=5", ConnAction::Reject([0, 0, 0, 5])),
        ("on=request do=drop-reply", ConnAction::DropReply),
        (
            "on=request do=slow=2s",
            ConnAction::Slow(2000.try_into().unwrap()),
        ),
        ("on=connect do=unreachable", ConnAction::Unreachable),
        ("on=connect do=connect-error", ConnAction::ConnectError),
        ("on=connect do=disconnect", ConnAction::Disconnect),
        ("on=request do=remove", ConnAction::Remove),
    ] {
        assert_eq!(action(line), RuleAction::Connection(expected), "{line}");
    }
    for (line, errno) in [
        ("on=create_qp do=errno=EPERM", 1),
        ("on=modify_qp scope=device do=errno=ENOMEM", 12),
        ("on=post_send kernel=yes do=errno=EHOSTUNREACH", 113),
    ] {
        assert_eq!(action(line), RuleAction::Errno(errno), "{line}");
    }
}

#[test]
fn rule_parse_error_names_the_word() {
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
        ("comm= do=fin", Mistake::Value("comm=")),
        (
            "comm=0123456789abcdef do=fin",
            Mistake::Value("comm=0123456789abcdef"),
        ),
        ("on=posted do=fin", Mistake::Value("on=posted")),
        ("on=post do=rate=1M", Mistake::Conflict("on")),
        ("on=post do=corrupt", Mistake::Conflict("on")),
        ("on=post do=no-receive", Mistake::Conflict("on")),
        ("on=post kernel=yes do=fin", Mistake::Conflict("kernel")),
        ("on=post do=errno=EIO", Mistake::PostOfProcess),
        (
            "on=post op=send kernel=yes do=errno=EIO",
            Mistake::Conflict("op"),
        ),
        ("after=0 do=fin", Mistake::Value("after=0")),
        (
            "after=4294967296 do=fin",
            Mistake::Value("after=4294967296"),
        ),
        ("after=1 after=2 do=fin", Mistake::Conflict("after=2")),
        ("on=post after=1 do=fin", Mistake::Conflict("on")),
        ("on=recv after=1 do=fin", Mistake::Conflict("on")),
        ("on=complete after=1 do=silent", Mistake::Conflict("on")),
        ("on=create_qp after=1 do=fin", Mistake::Conflict("on")),
        ("op=read after=1 do=fin", Mistake::Conflict("op")),
        ("op=atomic after=1 do=fin", Mistake::Conflict("op")),
        ("after=1 do=rate=1M", Mistake::Conflict("after")),
        ("after=1 do=corrupt", Mistake::Conflict("after")),
        ("after=1 do=event=CQ_ERR", Mistake::Conflict("after")),
        ("after=1 do=status=GENERAL_ERR", Mistake::Conflict("after")),
        (
            "on=alloc_pd after=1 do=errno=EIO",
            Mistake::Conflict("after"),
        ),
        ("on=connect after=1 do=remove", Mistake::Conflict("after")),
        ("scope=all do=fin", Mistake::Value("scope=all")),
        ("kernel=no do=corrupt", Mistake::Value("kernel=no")),
        ("kernel do=corrupt", Mistake::Value("kernel")),
        ("do=corrupt=all", Mistake::Value("do=corrupt=all")),
        ("do=delay=5", Mistake::Value("do=delay=5")),
        ("do=delay=0ms", Mistake::Value("do=delay=0ms")),
        ("do=delay=3601s", Mistake::Value("do=delay=3601s")),
        ("do=delay=ms", Mistake::Value("do=delay=ms")),
        ("do=delay=1.5s", Mistake::Value("do=delay=1.5s")),
        ("do=rate=999", Mistake::Value("do=rate=999")),
        ("do=rate=1K", Mistake::Value("do=rate=1K")),
        (
            "do=rate=99999999999G",
            Mistake::Value("do=rate=99999999999G"),
        ),
        ("do=no-receive", Mistake::Conflict("on")),
        ("on=complete do=no-receive", Mistake::Conflict("on")),
        ("on=complete do=reset", Mistake::Conflict("on")),
        ("on=complete do=fin", Mistake::Conflict("on")),
        ("on=complete do=terminate=0x11203", Mistake::Conflict("on")),
        ("on=complete do=corrupt", Mistake::Conflict("on")),
        ("on=complete do=rate=1M", Mistake::Conflict("on")),
        ("on=recv do=rate=1M", Mistake::Conflict("on")),
        ("on=recv do=corrupt", Mistake::Conflict("on")),
        ("on=recv do=corrupt=crc", Mistake::Conflict("on")),
        ("op=read do=corrupt", Mistake::Conflict("op")),
        ("op=atomic do=corrupt", Mistake::Conflict("op")),
        ("on=recv op=write do=no-receive", Mistake::Conflict("op")),
        (
            "on=recv op=read do=status=LOC_LEN_ERR",
            Mistake::Conflict("op"),
        ),
        (
            "on=recv quiet do=status=LOC_LEN_ERR",
            Mistake::Conflict("quiet"),
        ),
        ("kernel=yes do=fin", Mistake::Conflict("kernel")),
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
        ("do=remove", Mistake::Conflict("on")),
        ("on=recv do=disconnect", Mistake::Conflict("on")),
        ("on=iw_connect do=unreachable", Mistake::Conflict("on")),
        ("on=request do=unreachable", Mistake::Conflict("on")),
        ("on=request do=connect-error", Mistake::Conflict("on")),
        ("on=request do=disconnect", Mistake::Conflict("on")),
        ("on=connect do=errno=EIO", Mistake::Conflict("on")),
        ("on=connect do=reset", Mistake::Conflict("on")),
        ("on=connect do=delay=1s", Mistake::Conflict("on")),
        ("on=request do=event=PORT_ERR", Mistake::Conflict("on")),
        ("on=request qp=1 do=remove", Mistake::Conflict("qp")),
        ("on=request comm=x do=remove", Mistake::Conflict("comm")),
        ("on=connect op=send do=remove", Mistake::Conflict("op")),
        (
            "on=connect scope=stream do=remove",
            Mistake::Conflict("scope"),
        ),
        (
            "on=connect kernel=yes do=remove",
            Mistake::Conflict("kernel"),
        ),
        ("on=connect do=reject", Mistake::Value("do=reject")),
        ("on=connect do=reject=x", Mistake::Value("do=reject=x")),
        ("on=connect do=remove=1", Mistake::Value("do=remove=1")),
        ("on=connect do=slow=0ms", Mistake::Value("do=slow=0ms")),
        ("do=event=GID_CHANGE", Mistake::Value("do=event=GID_CHANGE")),
        ("do=event=", Mistake::Value("do=event=")),
        ("on=create_qp do=event=PORT_ERR", Mistake::Conflict("on")),
        ("quiet do=event=PORT_ERR", Mistake::Conflict("quiet")),
        ("kernel=yes do=event=PORT_ERR", Mistake::Conflict("kernel")),
        (
            "on=destroy_qp do=errno=EIO",
            Mistake::Value("on=destroy_qp"),
        ),
        ("on=alloc_pd do=errno=12", Mistake::Value("do=errno=12")),
        (
            "on=alloc_pd do=errno=ENOENTRY",
            Mistake::Value("do=errno=ENOENTRY"),
        ),
        ("do=errno=EIO", Mistake::Conflict("on")),
        ("on=recv do=errno=EIO", Mistake::Conflict("on")),
        ("on=complete do=errno=EIO", Mistake::Conflict("on")),
        ("on=create_qp do=reset", Mistake::Conflict("on")),
        ("on=create_qp do=delay=1s", Mistake::Conflict("on")),
        ("on=create_qp do=silent", Mistake::Conflict("on")),
        ("on=create_qp do=corrupt", Mistake::Conflict("on")),
        ("on=create_qp do=no-receive", Mistake::Conflict("on")),
        (
            "on=create_qp do=status=GENERAL_ERR",
            Mistake::Conflict("on"),
        ),
        ("on=create_qp qp=1 do=errno=EIO", Mistake::Conflict("qp")),
        (
            "on=create_qp port=1 do=errno=EIO",
            Mistake::Conflict("port"),
        ),
        (
            "on=create_qp peer=::1 do=errno=EIO",
            Mistake::Conflict("peer"),
        ),
        ("on=create_qp op=send do=errno=EIO", Mistake::Conflict("op")),
        (
            "on=create_qp scope=stream do=errno=EIO",
            Mistake::Conflict("scope"),
        ),
        (
            "on=create_qp kernel=yes do=errno=EIO",
            Mistake::Conflict("kernel"),
        ),
        ("on=post_send do=errno=EIO", Mistake::PostOfProcess),
        ("on=post_recv do=errno=EIO", Mistake::PostOfProcess),
        ("on=post_srq_recv do=errno=EIO", Mistake::PostOfProcess),
        (
            "on=post_send kernel=yes comm=x do=errno=EIO",
            Mistake::Conflict("comm"),
        ),
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

/// The files that the package riwarp-utils installs.
const SCENARIOS: [(&str, &str); 5] = [
    ("failover", include_str!("../../utils/inject/failover")),
    (
        "flapping-port",
        include_str!("../../utils/inject/flapping-port"),
    ),
    (
        "lossy-completions",
        include_str!("../../utils/inject/lossy-completions"),
    ),
    (
        "silent-peer",
        include_str!("../../utils/inject/silent-peer"),
    ),
    ("slow-peer", include_str!("../../utils/inject/slow-peer")),
];

/// A device of any type takes each of them, by one write of at most a page.
#[test]
fn scenario_files_have_rules_for_all_devices() {
    // The statuses for which libsiw has no number (docs/inject.md).
    let not_of_siw = [6, 11, 12, 13, 16];
    for (name, text) in SCENARIOS {
        assert!(text.len() < 4096, "{name}");
        let rules: Vec<Rule> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(rule)
            .collect();
        assert!((1..=MAX_RULES).contains(&rules.len()), "{name}");
        for rule in rules {
            if let RuleAction::Status { status, vendor, .. } = rule.action() {
                assert!(!not_of_siw.contains(&status) && vendor == 0, "{name}");
            }
        }
        // What a comment offers instead is a rule, too.
        for line in text.lines().filter(|line| line.starts_with("#nth")) {
            rule(&line[1..]);
        }
    }
}

/// Whatever is written: no panic, and what is a rule can be counted.
#[test]
fn any_text_is_parsed_or_refused() {
    bolero::check!().for_each(|octets: &[u8]| {
        let Ok(text) = core::str::from_utf8(octets) else {
            return;
        };
        if let Ok(rule) = Rule::parse(text) {
            let [mut stream, mut device] = [RuleCounts::default(); 2];
            for subject in [subject(), arrived(), call(Verb::PostSend, None)] {
                stream.count(&mut device, &[rule], &subject);
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
        "do=silent",
        "do=delay=5ms",
        "do=rate=18446744073709551615",
        "do=rate=18446744073G",
        "do=corrupt",
        "do=no-receive",
        "do=errno=ENOMEM",
        "do=event=PORT_ERR",
        "on=recv",
        "on=create_qp",
        "on=connect",
        "do=reject=1",
        "on=post_send",
        "on=post",
        "after=7",
        "comm=0123456789abcde",
        "scope=device",
        "kernel=yes",
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
            let [mut stream, mut device] = [RuleCounts::default(); 2];
            stream.count(&mut device, &[rule], &subject());
        }
    });
}
