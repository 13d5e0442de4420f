//! What every figure is measured with, and how it is given: duration, cores, percentiles, checks, the machine and the versions.

pub(crate) mod env;
pub(crate) mod outcome;
pub(crate) mod percentiles;
pub(crate) mod run;
