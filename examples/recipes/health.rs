//! **A readiness probe.** The process is ready while Redis answers and its locks are renewed. Kubernetes and load balancers
//! ask by HTTP; whatever serves that calls `probe`.
//!
//! Use it for readiness and not for liveness: a restart does not bring Redis back, and loses what the process holds.

use redlatch::Client;

/// The status and the body of the answer.
pub fn probe(client: &Client) -> (u16, String) {
    let health = client.health();
    let status = if health.is_ready() { 200 } else { 503 };
    (status, health.to_string())
}
