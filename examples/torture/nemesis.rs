//! The faults of a run, one at a time and now and then two, all chosen by the seed.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::crew::Crew;
use super::deployment::{Deployed, Place};
use super::dice::Dice;
use super::journal::Journal;
use super::support::{Mode, Proxy, Target, Trap, lua, ms, within};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL of a server, which then restarts with all the data that it has acknowledged.
    KillServer,
    /// SIGKILL of a server, which then restarts empty.
    LoseData,
    /// SIGSTOP of a server.
    StopServer,
    /// SIGKILL of two of the five masters.
    KillMasters,
    /// SIGKILL of a worker, which is replaced.
    KillWorker,
    /// SIGSTOP of a worker.
    StopWorker,
    /// Resets connections of a worker.
    Cut,
    /// Delays replies, or both directions.
    Delay,
    /// Forwards a request, but drops its reply and all that follow.
    Swallow,
    /// Drops everything, also on new connections.
    BlackHole,
    /// Keeps the present connections open, but forwards nothing on them any more.
    HalfOpen,
    ClientKill,
    ScriptFlush,
    ClientPause,
    /// The Sentinels replace a working master.
    SentinelFailover,
    /// A replica of the cluster takes over, with its master's consent.
    ClusterFailover,
    /// A slot moves to another master.
    ClusterMigrate,
}

/// The faults by the names that the command line and the history use.
pub(crate) const NAMES: [(Fault, &str); 17] = [
    (Fault::KillServer, "kill-server"),
    (Fault::LoseData, "lose-data"),
    (Fault::StopServer, "stop-server"),
    (Fault::KillMasters, "kill-masters"),
    (Fault::KillWorker, "kill-worker"),
    (Fault::StopWorker, "stop-worker"),
    (Fault::Cut, "proxy-cut"),
    (Fault::Delay, "proxy-delay"),
    (Fault::Swallow, "proxy-swallow"),
    (Fault::BlackHole, "proxy-blackhole"),
    (Fault::HalfOpen, "proxy-half-open"),
    (Fault::ClientKill, "client-kill"),
    (Fault::ScriptFlush, "script-flush"),
    (Fault::ClientPause, "client-pause"),
    (Fault::SentinelFailover, "sentinel-failover"),
    (Fault::ClusterFailover, "cluster-failover"),
    (Fault::ClusterMigrate, "cluster-migrate"),
];

impl Fault {
    pub(crate) fn name(self) -> &'static str {
        let entry = NAMES.iter().find(|(fault, _)| *fault == self);
        entry.map_or("", |(_, name)| name)
    }

    fn is_about_workers(self) -> bool {
        matches!(
            self,
            Self::KillWorker
                | Self::StopWorker
                | Self::Cut
                | Self::Delay
                | Self::Swallow
                | Self::BlackHole
                | Self::HalfOpen
        )
    }

    /// The faults that are possible in this deployment.
    pub(crate) fn of(place: Place) -> Vec<Self> {
        let befalls = |fault: &Self| match fault {
            Self::LoseData => place.is_durable(),
            Self::KillMasters => place == Place::Masters,
            Self::SentinelFailover => place.name() == "sentinel",
            Self::ClusterFailover | Self::ClusterMigrate => place.name() == "cluster",
            _ => true,
        };
        let all = NAMES.iter().map(|(fault, _)| *fault);
        all.filter(befalls).collect()
    }
}

/// A fault with all its details chosen.
#[derive(Clone, Debug)]
enum Blow {
    Kill {
        servers: Vec<usize>,
        forget: bool,
    },
    Stop {
        servers: Vec<usize>,
    },
    KillWorker(usize),
    StopWorker(usize),
    /// Disturbs the connections of a worker to some servers.
    Network {
        worker: usize,
        servers: Vec<usize>,
        target: Target,
        how: How,
    },
    /// Sends a command to servers.
    Command {
        servers: Vec<usize>,
        command: Vec<String>,
    },
    /// Promotes a replica of the master that keeps this name.
    Promote(String),
    Migrate(String),
}

#[derive(Clone, Debug)]
enum How {
    Cut,
    Spoil(Mode),
    SwallowReplyTo(&'static str),
    /// As `SwallowReplyTo`, for a request that contains the name of a lock, whatever the library.
    SwallowReplyAbout(String),
    LoseRequests,
    LoseReplies,
}

pub(crate) struct Nemesis<'a> {
    pub(crate) deployed: &'a mut Deployed,
    pub(crate) crew: &'a mut Crew,
    pub(crate) journal: &'a Journal,
    pub(crate) dice: Dice,
    pub(crate) faults: Vec<Fault>,
    pub(crate) lease: Duration,
    /// The number of faults so far.
    pub(crate) count: u64,
}

impl Nemesis<'_> {
    /// Causes faults, one after another, until `until`.
    pub(crate) fn run(&mut self, until: Instant) {
        let mut faults_left: Vec<Fault> = Vec::new();
        while Instant::now() < until {
            if faults_left.is_empty() {
                // A new shuffle of all faults, so that each comes as often as the others.
                let order = self.dice.shuffled(self.faults.len());
                faults_left = order.into_iter().map(|n| self.faults[n]).collect();
            }
            let Some(fault) = faults_left.pop() else {
                let time_left = until.saturating_duration_since(Instant::now());
                return thread::sleep(time_left);
            };
            // A quarter of the faults last longer than a lease.
            let lasts = match self.dice.draw(4) {
                0 => self.lease + self.upto(1_000),
                _ => ms(100) + self.upto(900),
            };
            self.befall(fault, lasts);
            let mut calm = ms(200) + self.upto(800);
            if self.faults.len() == 1 {
                // If only one kind of fault is tested, its effects must be over or visible before the next one could
                // explain them.
                calm += self.lease;
            }
            thread::sleep(calm);
        }
    }

    fn upto(&mut self, millis: usize) -> Duration {
        ms(self.dice.draw(millis) as u64)
    }

    fn below(&mut self, n: usize) -> usize {
        self.dice.draw(n)
    }

    fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.dice.draw(all.len())].clone()
    }

    /// The servers to hit: one, or up to two of the five masters, of which a majority suffices.
    fn servers(&mut self) -> Vec<usize> {
        let place = self.deployed.place;
        if place == Place::Masters {
            return self.dice.some_of(5, 2);
        }
        if place == Place::One {
            return vec![0];
        }
        // A fault of a replica shows little, so hit a master.
        let masters = self.deployed.has_masters();
        vec![self.one_of(&masters)]
    }

    fn plan(&mut self, fault: Fault) -> Blow {
        let workers = self.crew.len();
        match fault {
            Fault::KillServer => Blow::Kill {
                servers: self.servers(),
                forget: false,
            },
            Fault::LoseData => Blow::Kill {
                servers: self.servers(),
                forget: true,
            },
            Fault::KillMasters => {
                let servers = self.dice.shuffled(5)[..2].to_vec();
                Blow::Kill {
                    servers,
                    forget: self.below(2) == 0,
                }
            }
            Fault::StopServer => Blow::Stop {
                servers: self.servers(),
            },
            Fault::KillWorker => Blow::KillWorker(self.below(workers)),
            Fault::StopWorker => Blow::StopWorker(self.below(workers)),
            Fault::Cut => self.network(|_| How::Cut),
            Fault::Delay => self.network(|nemesis| {
                let by = ms(5) + nemesis.upto(300);
                let slow = ms(1) + nemesis.upto(20);
                let modes = [
                    Mode::Delay(by),
                    Mode::DelayBoth(by),
                    Mode::Stall,
                    Mode::Slow(slow),
                ];
                How::Spoil(nemesis.one_of(&modes))
            }),
            Fault::Swallow if self.crew.is_remote() => {
                let name = self.name();
                self.network(|_| How::SwallowReplyAbout(name))
            }
            Fault::Swallow => {
                let kinds = self.crew.kinds().to_vec();
                self.network(|nemesis| {
                    let often = |file: &str| {
                        let verbs = ["_acquire", "_release", "_renew", "_call"];
                        verbs.iter().any(|verb| file.ends_with(verb))
                            && kinds.iter().any(|kind| kind.uses(file))
                    };
                    let scripts = lua::ALL.iter().filter(|(file, _)| often(file));
                    let files: Vec<&'static str> = scripts.map(|(file, _)| *file).collect();
                    How::SwallowReplyTo(nemesis.one_of(&files))
                })
            }
            Fault::BlackHole => self.network(|_| How::Spoil(Mode::BlackHole)),
            Fault::HalfOpen => self.network(|nemesis| {
                nemesis.one_of(&[How::LoseRequests, How::LoseRequests, How::LoseReplies])
            }),
            Fault::ClientKill => {
                let kind = self.one_of(&["normal", "pubsub"]);
                self.command(&["CLIENT", "KILL", "TYPE", kind])
            }
            Fault::ScriptFlush => self.command(&["SCRIPT", "FLUSH"]),
            Fault::ClientPause => {
                // Sentinels take a master that pauses all commands for dead, so pause only writes here.
                let whom = match self.deployed.place.is_durable() {
                    true => self.one_of(&["ALL", "WRITE"]),
                    false => "WRITE",
                };
                let millis = (ms(100) + self.upto(900)).as_millis().to_string();
                self.command(&["CLIENT", "PAUSE", &millis, whom])
            }
            Fault::SentinelFailover | Fault::ClusterFailover => Blow::Promote(self.name()),
            Fault::ClusterMigrate => Blow::Migrate(self.name()),
        }
    }

    /// The name of a lock in use.
    fn name(&mut self) -> String {
        let at = self.below(self.crew.kinds().len());
        self.crew.kinds()[at].name_of(0)
    }

    fn network(&mut self, how: impl FnOnce(&mut Self) -> How) -> Blow {
        use Target::{All, Link, Named, Subscriber, Watchdog};
        // The servers' own connections may lead through this proxy too.
        let all = if self.is_shared() { Link } else { All };
        // Other libraries give their connections no roles.
        let targets = match self.crew.is_remote() {
            true if self.is_shared() => vec![Named],
            true => vec![All],
            false => vec![all, all, Link, Link, Subscriber, Watchdog],
        };
        Blow::Network {
            worker: self.below(self.deployed.proxies.len()),
            servers: self.servers(),
            target: self.one_of(&targets),
            how: how(self),
        }
    }

    /// Whether all workers connect through the same proxies.
    fn is_shared(&self) -> bool {
        self.deployed.proxies.len() < self.crew.len()
    }

    fn command(&mut self, command: &[&str]) -> Blow {
        Blow::Command {
            servers: self.servers(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
        }
    }

    /// The details of the fault for the history.
    fn described(&self, fault: Fault, blow: &Blow) -> Value {
        let durable = self.deployed.place.is_durable();
        // A restarted master of a `RedLock` is not counted until every lease is over, so losing its data divides
        // nothing.
        let majority = self.deployed.place == Place::Masters;
        let divides = match blow {
            Blow::Kill { forget, .. } => !majority && (*forget || !durable),
            Blow::Stop { .. } => !durable,
            Blow::Promote(_) => fault == Fault::SentinelFailover,
            _ => false,
        };
        let mut value = json!({ "what": format!("{blow:?}"), "divides": divides });
        let worker = match blow {
            Blow::KillWorker(worker) | Blow::StopWorker(worker) => Some(*worker),
            Blow::Network { worker, .. } if !self.is_shared() => Some(*worker),
            _ => None,
        };
        if let Some(worker) = worker {
            value["client"] = self.crew.number(worker).into();
        }
        if let (Fault::KillMasters, Blow::Kill { servers, .. }) = (fault, blow) {
            value["masters"] = json!(servers);
        }
        value
    }

    fn befall(&mut self, fault: Fault, lasts: Duration) {
        self.count += 1;
        let number = self.count;
        let blow = self.plan(fault);
        let mut value = self.described(fault, &blow);
        value["fault"] = number.into();
        let mut note = |until: &str| {
            value["until"] = until.into();
            self.journal.note(-1, "info", fault.name(), value.clone());
        };
        note("begin");
        let traps = self.strike(&blow);
        // Now and then disturb a worker at the same time.
        if !fault.is_about_workers() && self.dice.draw(5) == 0 {
            let others: Vec<_> = self
                .faults
                .iter()
                .copied()
                .filter(|fault| fault.is_about_workers())
                .collect();
            if !others.is_empty() {
                let other = self.one_of(&others);
                self.befall(other, lasts / 2);
            }
        }
        if traps.is_empty() {
            thread::sleep(lasts);
        } else {
            // The effects begin with the dropped reply and are measured from the end of the fault, so end it right
            // then.
            within(lasts, || traps.iter().any(Trap::fired));
        }
        self.undo(&blow);
        note("end");
    }

    fn proxies(&self, worker: usize, servers: &[usize]) -> Vec<&Proxy> {
        servers
            .iter()
            .map(|n| &self.deployed.proxies[worker][*n])
            .collect()
    }

    /// Causes the fault. Returns the traps that wait for a certain request, if the fault sets any.
    fn strike(&mut self, blow: &Blow) -> Vec<Trap> {
        let mut traps = Vec::new();
        match blow {
            Blow::Kill { servers, forget } => {
                if *forget {
                    self.journal.note_logs(self.deployed);
                }
                for n in servers {
                    self.deployed.servers_mut()[*n].kill();
                }
            }
            Blow::Stop { servers } => {
                for n in servers {
                    self.deployed.servers()[*n].freeze();
                }
            }
            Blow::KillWorker(worker) => self.crew.kill(*worker),
            Blow::StopWorker(worker) => self.crew.stop(*worker),
            Blow::Network {
                worker,
                servers,
                target,
                how,
            } => {
                for proxy in self.proxies(*worker, servers) {
                    match how {
                        How::Cut => {
                            proxy.cut(*target);
                        }
                        How::Spoil(mode) => proxy.set(*target, *mode),
                        How::SwallowReplyTo(file) => {
                            traps.push(proxy.swallow_reply_to(hash_of(file)));
                        }
                        How::SwallowReplyAbout(name) => traps.push(proxy.swallow_reply_to(name)),
                        How::LoseRequests => proxy.black_hole_present(*target),
                        How::LoseReplies => proxy.swallow_present(*target),
                    }
                }
            }
            Blow::Command { servers, command } => {
                let command: Vec<&str> = command.iter().map(String::as_str).collect();
                for n in servers {
                    // The server may be down because of another fault.
                    self.deployed.ask::<redis::Value>(*n, &command).ok();
                }
            }
            Blow::Promote(name) => self.deployed.fail_over(name),
            Blow::Migrate(name) => self.deployed.migrate(name),
        }
        traps
    }

    fn undo(&mut self, blow: &Blow) {
        match blow {
            Blow::Kill { servers, forget } => {
                if !self.deployed.place.is_durable() {
                    // A master that came back empty before its replacement would stay master, and its replicas would
                    // drop their data too.
                    self.deployed.has_masters();
                }
                for n in servers {
                    let server = &mut self.deployed.servers_mut()[*n];
                    if *forget {
                        server.lose_data();
                    }
                    server.restart();
                }
                self.deployed.settle();
                self.crew.restore(self.deployed);
            }
            Blow::Stop { servers } => {
                for n in servers {
                    self.deployed.servers()[*n].thaw();
                }
                self.deployed.settle();
            }
            Blow::KillWorker(worker) => self.crew.replace(*worker),
            Blow::StopWorker(worker) => self.crew.cont(*worker),
            Blow::Network {
                worker, servers, ..
            } => {
                for proxy in self.proxies(*worker, servers) {
                    proxy.pass();
                }
            }
            Blow::Command { .. } => {}
            Blow::Promote(_) | Blow::Migrate(_) => self.deployed.settle(),
        }
    }
}

/// The SHA1 hash of the script in this file.
fn hash_of(file: &str) -> String {
    let entry = lua::ALL.iter().find(|(entry, _)| *entry == file);
    let text = entry.map_or("", |(_, text)| text);
    redis::Script::new(text).get_hash().to_owned()
}
