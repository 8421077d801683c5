use super::*;

use std::time::Duration;

#[test]
fn a_cancelled_wait_ends_and_a_watched_waiter_is_woken() {
    let (token, waiter) = (CancelToken::new(), WaitingThread::<()>::new(Duration::ZERO));
    token.watch(&waiter);
    let other = token.clone();
    let thread = std::thread::spawn(move || other.cancel());
    waiter.park(Signals::default(), Deadline::NEVER, &|| {
        token.is_cancelled()
    });
    assert!(token.is_cancelled() && waiter.take_wakeup().is_none());
    thread.join().expect("thread");
}

#[test]
fn a_parked_thread_is_notified_of_what_was_stored() {
    let waiter = WaitingThread::new(Duration::ZERO);
    let other = Arc::clone(&waiter);
    let thread = std::thread::spawn(move || {
        // By then the other thread is parked, as a rule.
        std::thread::sleep(Duration::from_millis(20));
        other.store(1);
        other.notify();
    });
    let late = Deadline::at(Instant::now() + Duration::from_secs(60));
    waiter.park(Signals::default(), late, &|| false);
    assert_eq!(waiter.take_wakeup(), Some(1));
    assert!(!late.has_passed(Instant::now()), "not by the deadline");
    thread.join().expect("thread");
}

#[test]
fn a_message_is_news_and_so_is_the_loss_of_the_subscription() {
    let (waiter, soon) = (
        WaitingThread::<()>::new(Duration::ZERO),
        Instant::now() + Duration::from_millis(20),
    );
    waiter.set_answered(true);
    let known_signals = waiter.signals();
    waiter.park(known_signals, Deadline::at(soon), &|| false);
    assert!(Instant::now() >= soon && !waiter.signals().are_news_since(known_signals));
    let other = Arc::clone(&waiter);
    let thread = std::thread::spawn(move || other.message());
    let late = Instant::now() + Duration::from_secs(60);
    waiter.park(known_signals, Deadline::at(late), &|| false);
    assert!(Instant::now() < late && waiter.signals().are_news_since(known_signals));
    thread.join().expect("thread");
    let known_signals = waiter.signals();
    waiter.set_answered(false);
    assert!(waiter.signals().are_news_since(known_signals));
}

/// Notes at each notification whether the mutex of the waiters was free.
struct Notified {
    token: CancelToken,
    was_free: Mutex<Vec<bool>>,
}

impl Notified {
    fn note(&self) {
        let is_free = self.token.inner.waiters.try_lock().is_some();
        self.was_free.lock().push(is_free);
    }
}

impl Listener for Notified {
    fn message(&self) {
        self.note();
    }

    fn set_answered(&self, _: bool) {}

    fn look_again(&self) {
        self.note();
    }
}

#[test]
fn waiters_are_notified_without_the_mutex_that_new_ones_need() {
    let token = CancelToken::new();
    let waiting = [(); 2].map(|()| {
        let (token, was_free) = (token.clone(), Mutex::default());
        Arc::new(Notified { token, was_free })
    });
    waiting.iter().for_each(|waiter| token.watch(waiter));
    assert!(token.look_again());
    token.cancel();
    for waiter in &waiting {
        assert_eq!(*waiter.was_free.lock(), [true, true]);
    }
}

#[test]
fn a_token_forgets_waiters_that_are_gone() {
    let token = CancelToken::new();
    for _ in 0..100_000 {
        token.watch(&WaitingThread::<()>::new(Duration::ZERO));
    }
    assert!(token.inner.waiters.lock().capacity() < 64);
}
