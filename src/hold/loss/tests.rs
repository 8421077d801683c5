use super::*;

use crossbeam_channel::{Receiver, bounded, unbounded};

use crate::error::LossReason;

const LONG: Duration = Duration::from_secs(20);

fn loss(name: &str) -> Loss {
    Loss {
        name: name.into(),
        owner: String::new(),
        reason: LossReason::Forced,
    }
}

#[test]
fn the_first_loss_is_received_once_and_then_nothing() {
    let (guard, mut listeners) = (LossChannel::default(), Vec::new());
    let lost = guard.of(|listener| listeners.extend([listener(), listener()]));
    assert_eq!(lost.try_recv(), Err(TryRecvError::Empty));
    let timeout = lost.recv_timeout(Duration::from_millis(1));
    assert_eq!(timeout, Err(RecvTimeoutError::Timeout));
    listeners[1].notify(&loss("b"));
    listeners[0].notify(&loss("a"));
    let names: Vec<String> = lost.map(|loss| loss.name).collect();
    assert_eq!(names, ["b"]);
    assert_eq!(lost.recv(), Err(RecvError));
    let disconnected = lost.recv_timeout(Duration::MAX);
    assert_eq!(disconnected, Err(RecvTimeoutError::Disconnected));
}

#[test]
fn a_dropped_guard_disconnects_its_clones_and_leaves_the_list() {
    let mut listeners = Vec::new();
    for _ in 0..10_000 {
        let guard = LossChannel::default();
        let lost = guard.of(|listener| add_listener(&mut listeners, listener()));
        let lost = lost.clone();
        drop(guard);
        assert_eq!(lost.try_recv(), Err(TryRecvError::Disconnected));
    }
    assert!(listeners.len() < 64, "{} are kept", listeners.len());
}

fn numbered(n: u32) -> Loss {
    loss(&n.to_string())
}

fn number(loss: &Loss) -> u32 {
    loss.name.parse().expect("a number")
}

fn notices(listener: impl Fn(u32) + Send + Sync + 'static) -> Arc<Notices> {
    Notices::new(
        Arc::default(),
        Some(Arc::new(move |loss: &Loss| listener(number(loss)))),
    )
}

/// Sends every loss except `panics` to the receiver; panics on that one.
fn received_unless(panics: u32) -> (Arc<Notices>, Receiver<u32>) {
    let (sender, received) = unbounded();
    let listener = move |n| {
        assert_ne!(n, panics, "on purpose");
        sender.send(n).unwrap_or_default();
    };
    (notices(listener), received)
}

#[track_caller]
fn assert_received(received: &Receiver<u32>, losses: impl IntoIterator<Item = u32>) {
    for n in losses {
        assert_eq!(received.recv_timeout(LONG), Ok(n));
    }
}

#[test]
fn losses_are_handed_over_in_order() {
    let (notices, received) = received_unless(u32::MAX);
    for n in 0..1000 {
        notices.notify(numbered(n));
    }
    assert_received(&received, 0..1000);
}

#[test]
fn a_panic_over_one_loss_does_not_keep_the_next_from_being_handed_over() {
    let (notices, received) = received_unless(1);
    for n in 0..3 {
        notices.notify(numbered(n));
    }
    assert_received(&received, [0, 2]);
}

#[test]
fn a_thread_that_reports_a_loss_does_not_wait_for_the_loss_before() {
    let (release, released) = bounded::<()>(0);
    let (sender, received) = unbounded();
    let notices = notices(move |n| {
        released.recv_timeout(LONG).unwrap_or_default();
        sender.send(n).unwrap_or_default();
    });
    for n in 0..3 {
        notices.notify(numbered(n));
    }
    assert!(received.is_empty());
    drop(release);
    assert_received(&received, 0..3);
}

#[test]
fn a_listener_may_cause_more_losses() {
    let (sender, received) = unbounded();
    let cell: Arc<OnceLock<Arc<Notices>>> = Arc::default();
    let listener_cell = Arc::clone(&cell);
    let listener = move |n| {
        sender.send(n).unwrap_or_default();
        let notices = listener_cell.get().expect("set before the first loss");
        if n > 0 {
            notices.notify(numbered(n - 1));
        }
    };
    cell.get_or_init(|| notices(listener)).notify(numbered(3));
    assert_received(&received, (0..=3).rev());
}
