//! The checker of histories reports each forbidden event in the histories that contain one, and nothing in the others.

mod generated;
mod measures;
mod reading;
mod rules;
mod writes;
