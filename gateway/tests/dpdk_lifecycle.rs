//! Checks that DPDK leaves nothing behind when it is stopped.

use std::fs;
use std::path::Path;

use pinion_gateway::port::BufferPool;
use pinion_gateway::port::dpdk::{self, DpdkError, DpdkPool, Eal, EalConfig, HugePages, PortConfig, register_thread};

fn thread_names() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok()).collect()
}

#[test]
fn dpdk_stops_with_its_last_user_and_leaves_nothing() {
    let device = "net_ring0".to_owned();
    let config = EalConfig { devices: vec![device.clone()], buffers: 1023, huge_pages: HugePages::IfFree, core: None };
    let affinity = rustix::thread::sched_getaffinity(None).unwrap();
    let eal = Eal::start(&config).unwrap();
    assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), affinity, "the caller is not pinned");
    assert!(matches!(Eal::start(&config), Err(DpdkError::AlreadyStarted)));

    let registered = register_thread(&eal).unwrap();
    let mut pool = DpdkPool::new(&eal, 1023).unwrap();
    let port = dpdk::open(&PortConfig::new("west", &device), &pool).unwrap();
    assert_eq!((port.name(), port.device()), ("west", "net_ring0"));
    let mut buffers = Vec::new();
    assert_eq!(pool.take(&mut buffers, 5000), 1023);
    assert_eq!(pool.take(&mut buffers, 1), 0);
    pool.give(&mut buffers);

    drop(eal);
    drop(pool);
    assert!(thread_names().contains(&"dpdk\n".to_owned()), "a port keeps DPDK running");
    drop(port);
    drop(registered);
    assert!(!thread_names().contains(&"dpdk\n".to_owned()), "{:?}", thread_names());
    let runtime_directory = format!("/run/dpdk/pinion-{}", std::process::id());
    assert!(!Path::new(&runtime_directory).exists());
    assert!(matches!(Eal::start(&config), Err(DpdkError::AlreadyStarted)));
}
