//! Configurations.

use memcached::config::Config;

#[test]
fn a_configuration_has_defaults_and_units() {
    assert_eq!(Config::parse(b"").unwrap(), Config::default());
    assert_eq!(Config::default().udp_port(), None);
    let config = Config::parse(
        b"memory = \"32m\"\nitem_size_max = 65536\nport = 11300\nudp = true\nconnections_max = 100\nidle_timeout_s = 0",
    );
    let config = config.unwrap();
    assert_eq!((config.memory, config.item_size_max, config.port), (32 << 20, 65_536, 11_300));
    assert_eq!((config.udp_port(), config.connections_max, config.idle_timeout_s), (Some(11_300), 100, 0));
    let config = Config::parse(b"udp = true\nudp_port = 5\nmemory = \"2048k\"").unwrap();
    assert_eq!((config.udp_port(), config.memory), (Some(5), 2 << 20));
}

#[test]
fn a_refusal_names_the_field_the_value_and_what_is_allowed() {
    for (text, refusal) in [
        (
            "memory = \"1g\"",
            "configuration, line 1: memory: \"1g\" is not allowed: 65536 to 62914560 bytes are possible, as a number or like \"512k\" or \"8m\"",
        ),
        (
            "item_size_max = 10",
            "configuration, line 1: item_size_max: 10 is not allowed: 1024 to 33554432 bytes are possible, as a number or like \"512k\" or \"8m\"",
        ),
        ("port = 0", "configuration, line 1: port: 0 is no port; 1 to 65535 are possible"),
        ("connections_max = 5000", "configuration, line 1: connections_max: 5000 connections; 1 to 4096 are possible"),
        ("idle_timeout_s = -1", "configuration, line 1: idle_timeout_s: -1 seconds; 0 to 2592000 are possible"),
        ("udp_port = 5", "udp_port is set, but there is no UDP: add `udp = true`, or remove it"),
        (
            "memory = \"1m\"",
            "item_size_max is 1048576 bytes, and memory 1048576: an item may have at most half of the memory; set item_size_max to \
             524288 or less, or more memory",
        ),
    ] {
        assert_eq!(Config::parse(text.as_bytes()).unwrap_err().to_string(), refusal, "{text}");
    }
    assert!(Config::parse(b"sizes = 1").unwrap_err().to_string().contains("unknown field `sizes`"));
}
