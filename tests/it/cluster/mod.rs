mod faults;
mod kinds;
mod refusals;
