use super::*;

use std::sync::LazyLock;

use crate::net::call::{Attempt, Deferred, DeferredInfo, Undo};
use crate::net::request::Request;
use crate::net::slot::slot_of;
use crate::net::tests::Patient;
use crate::net::text::Text;

static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new("release"));

fn release(now: Instant) -> Arc<Call> {
    Call::deferred(Deferred {
        request: Request::script("releasing", &RELEASE, &["k"], &["o:1"]),
        info: DeferredInfo {
            name: "k".into(),
            owner: Text::default(),
            useful_until: now + Duration::from_secs(9),
            valid_until: None,
            undo: false,
            has_no_lease: false,
        },
    })
}

fn pipeline_to(node: usize) -> Pipeline {
    leading(node, &Arc::new(Ledger::of_one()))
}

fn leading(node: usize, ledger: &Arc<Ledger>) -> Pipeline {
    Pipeline::new(node, Arc::clone(ledger))
}

fn says(line: &str) -> Value {
    redis::parse_redis_value(format!("{line}\r\n").as_bytes()).expect("a reply")
}

#[test]
fn a_script_replies_with_no_more_parts_than_it_was_given() {
    let request = Request::script("refreshing", &RELEASE, &["k"; 5], &["u:1"; 7]);
    for (parts, fits) in [(0, true), (3, true), (6, true), (12, true), (13, false)] {
        let reply = Value::Array(vec![Value::Int(0); parts]);
        assert_eq!(is_of_a_script(&reply, &request), fits, "{parts}");
    }
}

#[test]
fn a_release_that_belongs_elsewhere_leaves_and_counts_as_never_sent() {
    let now = Instant::now();
    let ledger = Arc::new(Ledger::at("redis+cluster://127.0.0.1:1/"));
    let slot = slot_of(b"k");
    for is_asking in [false, true] {
        // The first node that is named has the number 0.
        let (mut here, mut there) = (leading(1, &ledger), leading(0, &ledger));
        here.connected(now);
        let call = release(now);
        assert!(here.submit(&call, now));
        assert_eq!(call.node(), 1);
        let code = if is_asking { "ASK" } else { "MOVED" };
        let reply = says(&format!("-{code} {slot} 127.0.0.1:7002"));
        let Received::Of(replied) = here.reply(reply, now, &Patient) else {
            panic!("it was asked for");
        };
        assert!(replied.is_elsewhere && !ledger.is_empty());
        assert_eq!(call.state.lock().sendings, 0);
        there.connected(now);
        if is_asking {
            let asked = ledger.take_asked();
            assert!(asked.len() == 1 && there.submit(&asked[0], now));
            assert!(matches!(
                there.reply(says("+OK"), now, &Patient),
                Received::Part
            ));
        }
        assert!(ledger.is_empty());
        assert_eq!(call.node(), 0);
        there.reply(says(":1"), now, &Patient);
        assert!(matches!(call.outcome(), Some(Ok(_))));
    }
}

// Or the acquire would find the hold that the release is about to end, and wait for its lease.
#[test]
fn an_acquire_goes_behind_a_release_that_a_node_asks_for() {
    let now = Instant::now();
    let ledger = Arc::new(Ledger::at("redis+cluster://127.0.0.1:1/"));
    let (mut here, mut there) = (leading(1, &ledger), leading(0, &ledger));
    here.connected(now);
    there.connected(now);
    let (released, acquire) = (release(now), attempt());
    assert!(here.submit(&released, now));
    let asks = says(&format!("-ASK {} 127.0.0.1:7002", slot_of(b"k")));
    here.reply(asks, now, &Patient);
    acquire.redirect(Some(0));
    assert!(there.submit(&acquire, now));
    let sent = &there.in_flight().expect("a connection").awaiting;
    let expected = [&released, &acquire];
    assert!(sent.len() == 2 && sent.iter().zip(expected).all(|(a, b)| Arc::ptr_eq(a, b)));
}

struct GivenUp;

impl Undo for GivenUp {
    fn undo(&self) -> Deferred {
        unreachable!("no attempt is lost")
    }
}

/// An attempt that may leave something to be undone.
fn attempt() -> Arc<Call> {
    Call::attempt(Attempt {
        request: Request::command("asking", &["HLEN", "k"]),
        undo: Some(Arc::new(GivenUp)),
    })
}

// Or many with little time would keep the server so busy that one with more time is never answered.
#[test]
fn an_attempt_waits_once_for_the_many_that_were_given_up_before_it() {
    let now = Instant::now();
    for given_up in [AT_ONCE - 2, AT_ONCE - 1] {
        let mut pipeline = pipeline_to(0);
        pipeline.connected(now);
        for _ in 0..given_up {
            assert!(pipeline.submit(&attempt(), now));
        }
        let mut undo = release(now);
        Arc::get_mut(&mut undo)
            .and_then(|call| call.deferred.as_mut())
            .expect("a release")
            .undo = true;
        assert!(pipeline.submit(&undo, now));
        let (patient, later) = (attempt(), attempt());
        let waits = given_up + 1 >= AT_ONCE;
        assert_eq!(pipeline.submit(&patient, now), !waits, "{given_up}");
        if waits {
            let end = pipeline.backlog_end().expect("what it waits for");
            assert!(Arc::ptr_eq(&end, &undo), "all that are on their way");
            let query = Call::question(Request::command("asking", &["PING"]));
            assert!(pipeline.submit(&query, now), "it leaves nothing behind");
            patient.record_waited();
            assert!(pipeline.submit(&patient, now), "it has waited");
        }
        for _ in 0..=given_up {
            pipeline.reply(says(":1"), now, &Patient);
        }
        assert!(undo.outcome().is_some() && pipeline.backlog_end().is_none());
        assert!(pipeline.submit(&later, now), "there is no backlog any more");
    }
}

#[test]
fn a_thread_leaves_its_bytes_to_the_leader_unless_a_third_of_the_commands_are_unwritten() {
    let now = Instant::now();
    let mut pipeline = pipeline_to(0);
    pipeline.connected(now);
    let mut writes = Vec::new();
    for due in 1..=20 {
        assert!(pipeline.submit(&release(now), now));
        let in_flight = pipeline.in_flight().expect("a connection");
        assert_eq!(in_flight.due(), due);
        if in_flight.is_worth_a_write() {
            let bytes = in_flight.unwritten.take();
            let all = bytes.len();
            in_flight.unwritten.wrote(bytes, all);
            writes.push(due);
        }
    }
    assert_eq!(writes, [1, 2, 3, 4, 5, 7, 10, 14, 20]);
}

#[test]
fn asking_goes_in_front_and_its_reply_does_not_count() {
    let now = Instant::now();
    let mut pipeline = pipeline_to(0);
    pipeline.connected(now);
    let (asked, plain) = (release(now), release(now));
    asked.state.lock().asking = true;
    assert!(pipeline.submit(&asked, now) && pipeline.submit(&plain, now));
    let bytes = pipeline.in_flight().expect("a connection").unwritten.take();
    let sent = String::from_utf8(bytes).expect("text");
    assert!(sent.starts_with("*1\r\n$6\r\nASKING\r\n*"), "{sent}");
    assert_eq!(sent.matches("ASKING").count(), 1);
    let mut reply = |line: &str| pipeline.reply(says(line), now, &Patient);
    // A refusal of it is no reply to the command either.
    assert!(matches!(reply("-ERR unknown command"), Received::Part));
    assert!(asked.outcome().is_none());
    assert!(matches!(reply(":1"), Received::Of(_)) && asked.outcome().is_some());
    assert!(matches!(reply(":2"), Received::Of(_)) && plain.outcome().is_some());
    assert!(matches!(reply(":3"), Received::Stray));
}

#[test]
fn what_one_node_could_not_take_another_takes_in_its_order_and_after_a_rest() {
    let now = Instant::now();
    let ledger = Arc::new(Ledger::of_one());
    let (mut here, mut there) = (leading(1, &ledger), leading(2, &ledger));
    let calls = [release(now), release(now)];
    for call in &calls {
        assert!(!here.submit(call, now), "there is no connection");
    }
    there.rests_until = Some(now + REST);
    there.connected(now);
    there.bring(&calls[1].request, now);
    assert!(calls.iter().all(|call| call.state.lock().sendings == 0));
    there.bring(&calls[1].request, now + REST);
    assert!(ledger.is_empty());
    let in_flight = there.in_flight().expect("a connection");
    for (call, sent) in calls.iter().zip(&in_flight.awaiting) {
        assert!(Arc::ptr_eq(call, sent));
        assert_eq!((call.state.lock().sendings, call.node()), (1, 2));
    }
}

#[test]
fn a_release_of_which_no_byte_was_written_is_not_a_repetition_when_it_is_sent() {
    let now = Instant::now();
    let mut pipeline = pipeline_to(0);
    pipeline.connected(now);
    let calls = [release(now), release(now)];
    assert!(pipeline.submit(&calls[0], now));
    pipeline.in_flight().expect("a connection").unwritten.take();
    assert!(pipeline.submit(&calls[1], now));
    pipeline.lost(&unasked());
    assert_eq!(
        calls.each_ref().map(|call| call.state.lock().sendings),
        [1, 0]
    );
}

#[test]
fn a_release_that_is_rejected_for_now_is_sent_again_after_a_rest() {
    let now = Instant::now();
    let mut pipeline = pipeline_to(0);
    pipeline.connected(now);
    assert!(pipeline.submit(&release(now), now));
    pipeline.reply(says("-LOADING Redis is loading"), now, &Patient);
    for (at, due) in [(now, 0), (now + REST / 2, 0), (now + REST, 1)] {
        pipeline.feed(at);
        assert_eq!(pipeline.in_flight().expect("a connection").due(), due);
    }
}

// A guarded command is sent again only if the server cannot have executed it.
#[test]
fn a_call_of_which_no_byte_was_written_counts_as_never_sent() {
    let now = Instant::now();
    let mut pipeline = pipeline_to(0);
    pipeline.connected(now);
    let calls = [(); 3].map(|()| Call::question(Request::command("asking", &["PING"])));
    assert!(pipeline.submit(&calls[0], now));
    pipeline.in_flight().expect("a connection").unwritten.take();
    for call in &calls[1..] {
        assert!(pipeline.submit(call, now));
    }
    pipeline.lost(&unasked());
    assert_eq!(calls.map(|call| call.was_sent()), [true, false, false]);
}

#[test]
fn a_batch_is_taken_once_the_former_is_answered() {
    let now = Instant::now();
    let mut pipeline = pipeline_to(0);
    let calls: Vec<_> = (0..=AT_ONCE).map(|_| release(now)).collect();
    for call in &calls {
        assert!(!pipeline.submit(call, now), "there is no connection");
    }
    pipeline.connected(now);
    let query = Call::question(Request::command("asking", &["PING"]));
    assert!(pipeline.submit(&query, now), "other commands go in between");
    for answered in 1..=AT_ONCE {
        pipeline.reply(says(":1"), now, &Patient);
        let due = pipeline.in_flight().expect("a connection").due();
        assert_eq!(
            due,
            AT_ONCE + 1 - answered + usize::from(answered == AT_ONCE)
        );
        assert_eq!(pipeline.ledger.is_empty(), answered == AT_ONCE);
    }
}

#[test]
fn a_call_is_where_it_was_sent_last() {
    let now = Instant::now();
    let mut pipeline = pipeline_to(3);
    pipeline.connected(now);
    let request = Request::command("asking", &["HLEN", "k"]);
    let call = Call::attempt(Attempt {
        request,
        undo: None,
    });
    assert!(pipeline.submit(&call, now));
    assert_eq!(call.node(), 3);
}
