//! redlatch itself, by the same lines as every other library.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Cmd;
use redlatch::kinds::{AnyKind, OneServer};
use redlatch::{Client, Config, Error, Guard, Handle, RedLock};
use serde_json::{Value, json};

use crate::library::{Failure, Hold, Library, Request, Servers, failed};

struct Redlatch {
    clients: Vec<Client>,
    red: Option<RedLock>,
}

pub fn described() -> Value {
    json!({
        "library": "redlatch", "version": option_env!("REDLATCH_VERSION"), "renews": true, "guards": true,
        "kinds": ["mutex", "reentrant", "fair", "fenced", "spin", "multi", "red"],
        "deployments": ["one", "sentinel", "cluster", "masters"],
    })
}

pub fn open(servers: &Servers) -> Result<Arc<dyn Library>, Failure> {
    let open = |url: &String| {
        let mut config = Config::new(url)
            .lease(servers.lease)
            .command_timeout(servers.timeout)
            .connect_timeout(servers.timeout);
        // A worker starts while its server is unreachable; of a cluster it has to know the nodes.
        if !url.contains("+cluster") {
            config = config.lazy();
        }
        Client::open(config).map_err(failed)
    };
    let clients: Vec<_> = servers.urls.iter().map(open).collect::<Result<_, _>>()?;
    let red = match clients.len() {
        1 => None,
        _ => Some(
            RedLock::new(&clients, "red-0")
                .map_err(failed)?
                .min_uptime(servers.lease),
        ),
    };
    Ok(Arc::new(Redlatch { clients, red }))
}

/// A guard of any kind, with how it writes.
struct Held<G> {
    guard: G,
    token: Option<u64>,
    write: fn(&G, &Cmd) -> redlatch::Result<()>,
}

impl<G: redlatch::Hold> Hold for Held<G> {
    fn keep(&self, limit: Duration) -> Option<String> {
        let loss = self.guard.lost().recv_timeout(limit).ok();
        let reason = loss.map(|loss| loss.reason.to_string());
        reason.or_else(|| (!self.guard.is_valid()).then(|| "not valid".to_owned()))
    }

    fn valid_until(&self) -> Option<Instant> {
        Some(self.guard.valid_until())
    }

    fn token(&self) -> Option<u64> {
        self.token
    }

    fn write(&self, key: &str, entry: &str) -> Result<(), Failure> {
        let done = (self.write)(&self.guard, redis::cmd("RPUSH").arg(key).arg(entry));
        match done {
            // The driver takes this for a rejected write, so it has to be certain that the command did not run.
            Err(err) if !err.may_have_run() => Err(Failure::Lost(err.to_string())),
            done => done.map_err(failed),
        }
    }

    fn unlock(self: Box<Self>) -> Result<(), Failure> {
        match self.guard.unlock() {
            Err(err @ Error::Lost { .. }) => Err(Failure::Lost(err.to_string())),
            done => done.map_err(failed),
        }
    }
}

type Granted = Result<Box<dyn Hold>, Failure>;

fn held<G: redlatch::Hold + 'static>(
    guard: G,
    token: Option<u64>,
    write: fn(&G, &Cmd) -> redlatch::Result<()>,
) -> Granted {
    Ok(Box::new(Held {
        guard,
        token,
        write,
    }))
}

fn take<K: AnyKind>(lock: &Handle<K>, wait: Option<Duration>) -> Result<Guard<K>, Failure> {
    let granted = match wait {
        None => lock.lock().map(Some),
        Some(Duration::ZERO) => lock.try_lock(),
        Some(wait) => lock.try_lock_for(wait),
    };
    granted.map_err(failed)?.ok_or(Failure::Busy)
}

fn guarding<K: OneServer>(lock: Handle<K>, request: &Request) -> Granted {
    let lock = match request.lease {
        Some(lease) => lock.fixed_lease(lease),
        None => lock,
    };
    let guard = take(&lock, request.wait)?;
    held(guard, None, |guard, command| guard.query(command))
}

fn unguarded<K: AnyKind>(lock: &Handle<K>, request: &Request) -> Granted {
    let guard = take(lock, request.wait)?;
    held(guard, None, |_, _| {
        unreachable!("the driver knows that it guards no commands")
    })
}

impl Library for Redlatch {
    fn lock(&self, request: &Request) -> Granted {
        let (client, names) = (&self.clients[0], &request.names);
        let name = &names[0];
        match request.kind.as_str() {
            "reentrant" => guarding(client.reentrant_lock(name), request),
            "fair" => guarding(client.fair_lock(name), request),
            "spin" => guarding(client.spin_lock(name), request),
            "fenced" => {
                let guard = take(&client.fenced_lock(name), request.wait)?;
                let token = Some(guard.token());
                held(guard, token, |guard, command| guard.query(command))
            }
            "multi" => unguarded(&client.multi_lock(names), request),
            "red" => unguarded(self.red.as_ref().expect("several masters"), request),
            _ => guarding(client.mutex(name), request),
        }
    }
}
