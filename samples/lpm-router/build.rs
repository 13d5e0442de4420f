//! Compiles the list of routes that `LPM_ROUTER_ROUTES` names into the module, as a configuration is too small for a
//! large list.

use std::path::Path;
use std::{env, fs};

const ROUTES: &str = "LPM_ROUTER_ROUTES";

fn main() {
    println!("cargo:rerun-if-env-changed={ROUTES}");
    let list = env::var_os(ROUTES).map_or_else(String::new, |path| {
        println!("cargo:rerun-if-changed={}", path.display());
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{ROUTES}={}: {error}", path.display()))
    });
    let out_dir = env::var_os("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out_dir).join("routes.txt"), list).expect("OUT_DIR is writable");
}
