//! A device as DPDK drives it: how it is named, opened and queried, how it wakes a sleeping thread, and what it is given
//! to send.

pub(super) mod alarms;
pub(super) mod device_string;
pub(super) mod ethernet;
pub(super) mod lengths;
pub(super) mod offers;
