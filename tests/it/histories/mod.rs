//! What nobody may do is found in histories where it was done, and nothing else is.

mod generated;
mod reading;
mod rules;
mod writes;
