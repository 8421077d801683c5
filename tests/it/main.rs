//! Everything that needs a real Redis server.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input;
mod contract;
mod contract_read;
mod contract_red;
mod expirable_semaphore;
mod expirable_semaphore_faults;
mod expirable_semaphore_model;
mod fair;
mod fair_faults;
mod fair_leaving;
mod fair_processes;
mod fair_redisson;
mod faults;
mod faults_network;
mod faults_server;
mod fenced;
mod fork;
mod kinds;
mod latch;
mod loss;
mod multi_lock;
mod multi_lock_members;
mod multi_lock_processes;
mod red_lock;
mod red_lock_faults;
mod regressions;
mod rights;
mod rwlock;
mod rwlock_faults;
mod rwlock_model;
mod rwlock_order;
mod rwlock_sharing;
mod scripts;
mod scripts_fair;
mod scripts_fenced;
mod scripts_multi;
mod scripts_permits;
mod scripts_rw;
mod scripts_rw_model;
mod semaphore;
mod spin;
mod support;
mod support_itself;
mod waiting;
