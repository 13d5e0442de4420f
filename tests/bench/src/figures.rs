//! The figures, a module each: options, and a `run` that measures.

pub(crate) mod chain;
pub(crate) mod churn;
pub(crate) mod density;
pub(crate) mod fair;
pub(crate) mod http;
pub(crate) mod idle;
pub(crate) mod infer;
pub(crate) mod invoke;
pub(crate) mod launch;
pub(crate) mod memcached;
pub(crate) mod middlebox;
pub(crate) mod ping;
pub(crate) mod quantum;
pub(crate) mod tls;
