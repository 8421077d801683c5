//! An outage from beginning to end: every operation during it, and normal work afterwards.

use redlatch::{Client, Error, LossReason};

use crate::support::{
    Kind, LEASE, Losses, Proxy, Queue, RESPONSE, Server, WAITER_LEASE, config, eventually, fails,
    gets_nothing, in_time, ms, nothing_is_left_of, scoped, unique, within,
};

/// Whether Redis still has its data after the outage.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Data {
    Kept,
    Gone,
}

/// Calls every operation while `fault` lasts, where each verb fails in time. After `heal`, the same client works,
/// releases have taken effect, timed-out acquires left nothing behind, and each earlier hold is still held or was
/// reported as lost.
pub(crate) fn bad_day<S>(
    kind: Kind,
    mut server: Server,
    proxy: &Proxy,
    fault: impl FnOnce(&mut Server, &Proxy) -> S,
    heal: impl FnOnce(&mut Server, &Proxy, S),
    data: Data,
) {
    let received = Losses::default();
    let client = Client::open(config(&proxy.url()).on_lost(received.listener())).unwrap();
    let name = |what: &str| unique(&format!("day:{what}"));
    let (kept, unlocked, dropped) = (name("kept"), name("unlocked"), name("dropped"));
    let keeper = kind.of(&client, &kept).lock().unwrap();
    let to_unlock = kind.of(&client, &unlocked).lock().unwrap();
    let to_drop = kind.of(&client, &dropped).lock().unwrap();
    let asked: Vec<_> = ["lock", "try", "for", "is", "left", "force"]
        .into_iter()
        .map(|verb| (verb, name(verb)))
        .collect();
    let state = fault(&mut server, proxy);
    scoped(|scope| {
        for (verb, name) in &asked {
            let lock = kind.of(&client, name);
            scope.spawn(move || match *verb {
                "lock" => fails(verb, RESPONSE, || lock.lock()),
                "try" => fails(verb, RESPONSE, || lock.try_lock()),
                "for" => {
                    for wait in [ms(50), ms(0), ms(120)] {
                        if wait.is_zero() {
                            fails(verb, RESPONSE, || lock.try_lock_for(wait));
                        } else {
                            gets_nothing(verb, wait, || lock.try_lock_for(wait));
                        }
                    }
                }
                "is" => fails(verb, RESPONSE, || lock.is_locked()),
                "left" => fails(verb, RESPONSE, || lock.remaining_lease()),
                _ => fails(verb, RESPONSE, || lock.force_unlock()),
            });
        }
        scope.spawn(|| {
            let lock = kind.foe().of(&client, &kept);
            if kind.queue == Queue::Redis {
                // The only queue of this kind is in Redis, so even a local waiter needs Redis.
                gets_nothing("waiting", ms(100), || lock.try_lock_for(ms(100)));
                return;
            }
            // The lock is held by this process, so the waiter gets `None` without asking Redis.
            let held = in_time("waiting", ms(100), || lock.try_lock_for(ms(100)));
            assert!(matches!(held, Ok(None)), "{held:?}");
        });
        in_time("dropping", ms(0), || drop(to_drop));
        fails("unlocking", RESPONSE, || to_unlock.unlock());
    });
    heal(&mut server, proxy, state);
    let limit = if kind.queue == Queue::Redis {
        RESPONSE + WAITER_LEASE
    } else {
        RESPONSE
    };
    for (_, name) in &asked {
        let guard = in_time("locking again", limit, || {
            let mut taken = None;
            // The first attempts after the fault may still fail.
            within(ms(2_000), || {
                taken = kind.of(&client, name).lock().ok();
                taken.is_some()
            });
            taken
        });
        let guard = guard.unwrap_or_else(|| panic!("{name} cannot be locked again"));
        assert!(guard.is_valid());
        guard.unlock().unwrap();
    }
    match data {
        Data::Kept => {
            let locks = |mut keys: Vec<String>| {
                keys.retain(|key| !kind.stays(key));
                keys
            };
            let held = locks(kind.keys(&kept, keeper.owner()));
            eventually("only the keys of the hold are left", || {
                if kind.queue == Queue::Redis {
                    // A timed-out request may have taken a place in the queue. The place ends with its waiter
                    // lease, and the next attempt removes it.
                    for (_, name) in &asked {
                        drop(kind.of(&client, name).try_lock());
                    }
                }
                locks(server.keys()) == held
            });
            assert_eq!(server.hgetall(&kept), kind.fields(keeper.owner(), 1));
            let renewals = client.stats().renewals;
            eventually("it is renewed", || client.stats().renewals > renewals + 1);
            assert!(keeper.is_valid() && keeper.lost().try_recv().is_err());
            keeper.unlock().unwrap();
        }
        Data::Gone => {
            let loss = keeper.lost().recv_timeout(LEASE).unwrap();
            assert_eq!(loss.reason, LossReason::Forced);
            assert!(!keeper.is_valid());
            // The release of a lost hold sends nothing, so it returns at once.
            let unlocked = in_time("unlocking the lost", ms(0), || keeper.unlock());
            assert!(
                matches!(unlocked, Err(Error::Lost { reason, .. }) if reason == LossReason::Forced),
                "{unlocked:?}"
            );
            eventually("the loss is reported once", || {
                received.reasons(&kept) == [LossReason::Forced]
            });
        }
    }
    let again = kind.of(&client, &kept).lock().unwrap();
    assert_eq!(server.hgetall(&kept), kind.fields(again.owner(), 1));
    drop(again);
    eventually("nothing is left", || nothing_is_left_of(kind, &server));
    assert_eq!(client.stats().releases_failed, 0);
    in_time("closing", RESPONSE, || client.close(RESPONSE)).unwrap();
}
