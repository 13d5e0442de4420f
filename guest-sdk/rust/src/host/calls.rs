//! The calls that a node offers its guests, with the same interface under Wasm and natively.

#[cfg(not(target_family = "wasm"))]
mod fake;
#[cfg(target_family = "wasm")]
mod imports;

#[cfg(not(target_family = "wasm"))]
pub(crate) use fake::keys::{grant_key, key_open, key_sign, ticket_open, ticket_seal};
#[cfg(not(target_family = "wasm"))]
pub(crate) use fake::nn::{
    grant_model, nn_compute, nn_get_output, nn_init_execution_context, nn_load_by_name, nn_set_input,
};
#[cfg(not(target_family = "wasm"))]
pub(crate) use fake::state::{
    grant_state, initialising, state_add, state_cas, state_delete, state_expire, state_get, state_open, state_put,
};
#[cfg(not(target_family = "wasm"))]
pub(crate) use fake::{
    advance_clock_ns, clock_ns, exact_clock_ns, forget_keep_alive, keep_alive_until, kept_until_ns, log, random,
    set_keep_alive_max_ns, take_log, yield_now,
};
#[cfg(target_family = "wasm")]
pub(crate) use imports::nn::{nn_compute, nn_get_output, nn_init_execution_context, nn_load_by_name, nn_set_input};
#[cfg(target_family = "wasm")]
pub(crate) use imports::{
    clock_ns, config, initialize, keep_alive_until, key_open, key_sign, log, panic, random, state_add, state_cas,
    state_delete, state_expire, state_get, state_open, state_put, ticket_open, ticket_seal, wait, yield_now,
};
