//! What the module's exports do: `guest-sdk/c/src/net/entry.c` has these.

use core::slice;

use pinion_abi::InitStatus;
use pinion_sdk::__private::{FunctionCell, PoolMemory, checked_own_slots, report_panics, run};
use pinion_sdk::net::{Hosted, Server, run_program};
use pinion_sdk::{Function, Looping, SLOT_COUNT_DEFAULT};

use super::callbacks::{self, Module};
use crate::{program, service};

const OWN_SLOTS: u16 = checked_own_slots(<Server<service::Guest> as Looping>::OWN_SLOTS, SLOT_COUNT_DEFAULT);

thread_local! {
    static POOL: PoolMemory<SLOT_COUNT_DEFAULT> = const { PoolMemory::new() };
    static SERVICE: FunctionCell<Server<service::Guest>> = const { FunctionCell::new(None) };
    static PROGRAM: FunctionCell<Hosted<program::Guest>> = const { FunctionCell::new(None) };
}

/// Prepares the module's function. Returns an `enum pinion_init_status`.
#[unsafe(no_mangle)]
unsafe extern "C" fn pinion_net_prepare_(module: &'static Module, config: *const u8, len: usize) -> i32 {
    report_panics();
    callbacks::install(*module);
    // SAFETY: entry.c passes the configuration that it has read.
    let config = unsafe { slice::from_raw_parts(config, len) };
    let prepared = match module.service {
        Some(_) => {
            <Server<service::Guest> as Function>::init(config).map(|function| drop(SERVICE.replace(Some(function))))
        }
        None => {
            <Hosted<program::Guest> as Function>::init(config).map(|function| drop(PROGRAM.replace(Some(function))))
        }
    };
    match prepared {
        Ok(()) => InitStatus::Ready as i32,
        Err(refusal) => {
            if !callbacks::is_refused() {
                pinion_sdk::error!("{refusal}");
            }
            InitStatus::ConfigRefused as i32
        }
    }
}

/// Returns the address of the pool's header.
#[unsafe(no_mangle)]
extern "C" fn pinion_net_pool_() -> u32 {
    POOL.with(|pool| pool.publish(OWN_SLOTS))
}

/// Runs the function.
#[unsafe(no_mangle)]
extern "C" fn pinion_net_run_() {
    let is_service = SERVICE.with_borrow(Option::is_some);
    POOL.with(|pool| match is_service {
        true => SERVICE.with(|function| run(function, pool)),
        false => PROGRAM.with(|function| run_program(function, pool)),
    });
}
