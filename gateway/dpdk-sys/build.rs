//! Finds the system's DPDK, compiles the shim against it and generates the declarations that the gateway uses.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The libraries whose functions are called. DPDK loads its drivers itself, as plugins.
const LIBRARIES: [&str; 4] = ["rte_eal", "rte_ethdev", "rte_mbuf", "rte_mempool"];

const FUNCTIONS: [&str; 44] = [
    "pinion_.*",
    "rte_dev_probe",
    "rte_dev_remove",
    "rte_eal_cleanup",
    "rte_eal_get_runtime_dir",
    "rte_eal_init",
    "rte_eth_allmulticast_enable",
    "rte_eth_dev_adjust_nb_rx_tx_desc",
    "rte_eth_dev_close",
    "rte_eth_dev_configure",
    "rte_eth_dev_get_mtu",
    "rte_eth_dev_info_get",
    "rte_eth_dev_rx_intr_ctl_q_get_fd",
    "rte_eth_dev_rx_intr_disable",
    "rte_eth_dev_rx_intr_enable",
    "rte_eth_dev_set_mtu",
    "rte_eth_dev_socket_id",
    "rte_eth_dev_start",
    "rte_eth_dev_stop",
    "rte_eth_iterator_cleanup",
    "rte_eth_iterator_init",
    "rte_eth_iterator_next",
    "rte_eth_link_get_nowait",
    "rte_eth_macaddr_get",
    "rte_eth_promiscuous_disable",
    "rte_eth_promiscuous_enable",
    "rte_eth_rx_queue_setup",
    "rte_eth_stats_get",
    "rte_eth_tx_queue_setup",
    "rte_mbuf_best_mempool_ops",
    "rte_mempool_avail_count",
    "rte_mempool_calc_obj_size",
    "rte_mempool_create_empty",
    "rte_mempool_free",
    "rte_mempool_mem_iter",
    "rte_mempool_obj_iter",
    "rte_mempool_populate_default",
    "rte_mempool_set_ops_byname",
    "rte_pktmbuf_init",
    "rte_pktmbuf_pool_create",
    "rte_pktmbuf_pool_init",
    "rte_strerror",
    "rte_thread_register",
    "rte_thread_unregister",
];

const NO_DPDK: &str = "DPDK 22.11 or later was not found by pkg-config: on Debian, \
    `apt-get install libdpdk-dev pkg-config`; to build without DPDK, pass `--no-default-features`";
const NO_CLANG: &str = "on Debian, `apt-get install libclang-19-dev`";

const OPAQUE: [&str; 6] =
    ["rte_device", "rte_mbuf", "rte_mempool", "rte_eth_fdir_conf", "rte_eth_dev_portconf", "rte_eth_switch_info"];

fn main() {
    for file in ["src/shim.c", "src/shim.h"] {
        println!("cargo::rerun-if-changed={file}");
    }
    if let Err(sentence) = build() {
        println!("cargo::error={sentence}");
    }
}

fn build() -> Result<(), String> {
    let flags = compiler_flags()?;
    compile_shim(&flags)?;
    generate_bindings(&flags)
}

/// Returns the compiler flags of pkg-config. On Debian they include `-march`, which DPDK's inline functions need.
fn compiler_flags() -> Result<Vec<String>, String> {
    let dpdk = pkg_config::Config::new()
        .atleast_version("22.11")
        .cargo_metadata(false)
        .probe("libdpdk")
        .map_err(|_| NO_DPDK.to_owned())?;
    for path in &dpdk.link_paths {
        println!("cargo::rustc-link-search=native={}", path.display());
    }
    for library in LIBRARIES {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    let output = Command::new("pkg-config")
        .args(["--cflags", "libdpdk"])
        .output()
        .map_err(|error| format!("pkg-config could not be run: {error}"))?;
    let words = String::from_utf8(output.stdout).map_err(|_| "pkg-config answers in UTF-8 for libdpdk".to_owned())?;
    Ok(words.split_whitespace().map(str::to_owned).collect())
}

fn compile_shim(flags: &[String]) -> Result<(), String> {
    let mut shim = cc::Build::new();
    shim.file("src/shim.c").opt_level(3);
    for flag in flags {
        shim.flag(flag);
    }
    shim.try_compile("pinion_dpdk_shim").map_err(|error| {
        format!("the DPDK shim does not compile; is a C compiler installed (`apt-get install gcc`)? {error}")
            .replace('\n', " ")
    })
}

fn generate_bindings(flags: &[String]) -> Result<(), String> {
    let mut builder = bindgen::Builder::default()
        .header("src/shim.h")
        .clang_args(flags)
        .allowlist_recursively(true)
        .allowlist_function(FUNCTIONS.join("|"))
        .allowlist_type("rte_pktmbuf_pool_private")
        .allowlist_var("PINION_.*|RTE_PKTMBUF_HEADROOM|RTE_MEMPOOL_F_NO_IOVA_CONTIG|RTE_ETH_LINK_UP")
        .derive_copy(false)
        .derive_debug(false)
        .generate_comments(false)
        .layout_tests(false)
        .rust_edition(bindgen::RustEdition::Edition2024);
    for name in OPAQUE {
        builder = builder.opaque_type(name);
    }
    // Without libclang, bindgen panics; an error message is of more use.
    std::panic::set_hook(Box::new(|_| ()));
    let bindings = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate()));
    let _ = std::panic::take_hook();
    let bindings = bindings
        .map_err(|_| format!("libclang was not found: {NO_CLANG}"))?
        .map_err(|error| format!("bindgen cannot read DPDK's headers; {NO_CLANG}: {error}").replace('\n', " "))?;
    let out: PathBuf = Path::new(&std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?).join("bindings.rs");
    bindings.write_to_file(&out).map_err(|error| format!("{} cannot be written: {error}", out.display()))
}
