//! Inspecting, listing and checking: who holds a lock, which locks there are, and whether a server is fit for them.

mod checking;
mod health;
mod inspecting;
mod listing;
mod observing;
