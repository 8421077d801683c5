#![doc = include_str!("tour.md")]

#[doc = include_str!("with_redisson.md")]
pub mod with_redisson {}

#[doc = include_str!("deployments.md")]
pub mod deployments {}

#[doc = include_str!("operations.md")]
pub mod operations {}

// For contributors, from here on.

#[doc = include_str!("architecture.md")]
pub mod architecture {}

// The images of the page below; they take precedence over the files that it names.
#[doc = include_str!("plots/inlined.md")]
#[doc = include_str!("performance.md")]
pub mod performance {}

#[doc = include_str!("testing.md")]
pub mod testing {}
