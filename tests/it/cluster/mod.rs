mod faults;
mod kinds;
mod refusals;
mod rights;
