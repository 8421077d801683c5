//! Everything that needs a real Redis server.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input;
mod contract;
mod faults;
mod faults_network;
mod faults_server;
mod loss;
mod regressions;
mod rights;
mod rwlock;
mod scripts;
mod scripts_fair;
mod scripts_fenced;
mod scripts_rw;
mod scripts_rw_model;
mod support;
mod support_itself;
mod waiting;
