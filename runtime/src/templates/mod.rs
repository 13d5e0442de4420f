//! Templates: what the builder makes of a module, as files and as loaded into engines.
//!
//! ```text
//!   builder process -> artifacts (native code, facts) --\
//!   uploads         -> bundles   (archives of files)  ---+--> loaded into a worker's engine -> crate::fwp::template
//!   builder process -> model_forms (NNEF)            ------> loaded for a tenant            -> crate::fwp::inference
//! ```
//!
//! | file | owns |
//! |---|---|
//! | [`engine`] | the settings and the limits of engines |
//! | [`artifacts`], [`bundles`], [`model_forms`], [`derived`] | files in the state directory that can be made again, checked by their digests |
//! | [`build_progress`] | the list of builds under way |
//! | [`trials`] | templates whose first start ended the process; these are held back |
//! | [`native_code`] | mapping a template's code, with the `unsafe` for it |

pub mod artifacts;
pub mod build_progress;
pub mod build_turns;
pub mod bundles;
pub mod derived;
pub mod engine;
pub mod model_forms;
pub mod native_code;
pub mod one_at_a_time;
pub mod refused_builds;
pub mod trials;
