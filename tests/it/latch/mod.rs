//! The count-down latch.

mod basics;
