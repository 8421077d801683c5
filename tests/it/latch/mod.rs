//! The count-down latch.

pub(crate) mod basics;
