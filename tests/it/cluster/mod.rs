mod faults;
mod kinds;
mod refusals;
mod rights;
#[cfg(feature = "tls")]
mod tls;
mod topology;
