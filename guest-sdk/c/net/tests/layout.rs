//! C and Rust lay out what `pinion/net.h` declares in the same way: a C compiler checks Rust's numbers.
#![forbid(unsafe_code)]

use std::fmt::Write;
use std::fs;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use pinion_net::{
    Address, Close, Datagram, Module, Outcome, ProgramCallbacks, ServiceCallbacks, Settings, UdpPeer, Via,
};

/// Writes an assertion of a struct's size, and of the offset of each of these fields.
macro_rules! layout {
    ($text:ident, $rust:ty, $c:literal, $($field:ident),*) => {
        writeln!($text, "_Static_assert(sizeof({}) == {}, {:?});", $c, size_of::<$rust>(), $c).unwrap();
        $(
            let (offset, field) = (offset_of!($rust, $field), stringify!($field));
            writeln!($text, "_Static_assert(offsetof({}, {field}) == {offset}, {field:?});", $c).unwrap();
        )*
    };
}

/// Writes assertions of an enum's numbers.
macro_rules! numbers {
    ($text:ident, $rust:ty, $($variant:ident = $c:literal),* $(,)?) => {
        $(writeln!($text, "_Static_assert({} == {}, {:?});", $c, <$rust>::$variant as i32, $c).unwrap();)*
    };
}

fn assertions() -> String {
    let mut text = "#include <stddef.h>\n#include <pinion/net.h>\n".to_owned();
    layout!(text, Address, "struct pinion_address", version, bytes, port);
    layout!(text, Via, "struct pinion_via", way, vlan);
    layout!(text, UdpPeer, "struct pinion_udp_peer", address, local);
    layout!(text, Datagram, "struct pinion_datagram", payload, len, peer, is_of_flow, flow);
    layout!(
        text,
        Settings,
        "struct pinion_settings",
        tcp_ports,
        udp_ports,
        connections_max,
        udp_flows_max,
        resolvers,
        receive_bytes,
        send_bytes,
        idle_timeout_ns,
        send_timeout_ns
    );
    layout!(
        text,
        ServiceCallbacks,
        "struct pinion_service",
        init,
        start,
        accept,
        connected,
        connect_failed,
        ready,
        ended,
        datagram,
        flow,
        resolved,
        packet,
        expire
    );
    layout!(text, ProgramCallbacks, "struct pinion_program", init, packet, run);
    layout!(text, Module, "struct pinion_net_module_", service, program, deliver);
    numbers!(
        text,
        Outcome,
        Done = "PINION_NET_DONE",
        Later = "PINION_NET_LATER",
        Closed = "PINION_NET_CLOSED",
        ShutDown = "PINION_NET_SHUT_DOWN",
        TimedOut = "PINION_NET_TIMED_OUT",
        Invalid = "PINION_NET_INVALID",
        NoSocket = "PINION_NET_NO_SOCKET",
        NotNow = "PINION_NET_NOT_NOW",
        TooLong = "PINION_NET_TOO_LONG",
        NoRoom = "PINION_NET_NO_ROOM",
        NoWay = "PINION_NET_NO_WAY",
        NotGranted = "PINION_NET_NOT_GRANTED",
        Quota = "PINION_NET_QUOTA",
        NoRoute = "PINION_NET_NO_ROUTE",
        Refused = "PINION_NET_REFUSED",
        Unreachable = "PINION_NET_UNREACHABLE",
        FlowEnded = "PINION_NET_FLOW_ENDED",
        NoSuchName = "PINION_NET_NO_SUCH_NAME",
        NoAddress = "PINION_NET_NO_ADDRESS",
        ResolverFailed = "PINION_NET_RESOLVER_FAILED",
        NoResolver = "PINION_NET_NO_RESOLVER",
    );
    numbers!(
        text,
        Close,
        None = "PINION_CLOSE_NONE",
        ByPeer = "PINION_CLOSE_BY_PEER",
        Reset = "PINION_CLOSE_RESET",
        Idle = "PINION_CLOSE_IDLE",
        SendTimeout = "PINION_CLOSE_SEND_TIMEOUT",
        Unreachable = "PINION_CLOSE_UNREACHABLE",
        FlowEnded = "PINION_CLOSE_FLOW_ENDED",
        Aborted = "PINION_CLOSE_ABORTED",
    );
    text
}

#[test]
fn c_lays_out_all_structs_and_numbers_all_results_as_rust_does() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layout.c");
    fs::write(&file, assertions()).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include");
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-DPINION_WITH_NET", "-I"]);
    let output = command.arg(include).arg(&file).output().expect("a C compiler is here");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Compiles C that includes the header; returns what the compiler says.
fn said_of(options: &[&str], text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.c");
    fs::write(&file, format!("#include <pinion/net.h>\n{text}\n")).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include");
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-fsyntax-only"]).args(options).arg("-I").arg(include);
    String::from_utf8_lossy(&command.arg(&file).output().expect("a C compiler is here").stderr).into_owned()
}

#[test]
fn what_a_function_with_sockets_cannot_use_does_not_compile_and_the_compiler_says_what_to_use() {
    let with_net = &["-DPINION_WITH_NET"][..];
    assert_eq!(said_of(with_net, ""), "");
    let cases = [
        (&[][..], "", "has `NET := 1` in its Makefile"),
        (with_net, "PINION_FUNCTION(.packet = 0);", "is made by PINION_SERVICE or PINION_PROGRAM"),
        (with_net, "PINION_FUNCTION_WITH_SLOTS(64, .packet = 0);", "is made by PINION_SERVICE or PINION_PROGRAM"),
        (with_net, "size_t f(pinion_packet **p) { return pinion_wait(p); }", "a program waits by pinion_accept"),
    ];
    for (options, line, sentence) in cases {
        let said = said_of(options, line);
        assert!(said.contains(sentence), "{line}: {said}");
    }
}

/// Returns the examples in the header's first comment: lines that are indented by more than one space.
fn examples() -> String {
    let header = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../include/pinion/net.h")).unwrap();
    let comment = header.split("*/").next().unwrap_or_default();
    comment.lines().filter_map(|line| line.strip_prefix(" *     ")).fold(String::new(), |text, line| text + line + "\n")
}

#[test]
fn the_headers_examples_compile() {
    let examples = examples();
    let (service, program) = examples.split_once("PINION_SERVICE").expect("an example of each form");
    let (made, run) = program.split_once('\n').expect("a program after the service");
    let prepare = service.split("static void ready").next().expect("what both share");
    let makefile = "NET := 1\n";
    let service =
        format!("{}PINION_SERVICE{made}", service.strip_prefix(makefile).expect("the Makefile's line comes first"));
    let program = prepare.strip_prefix(makefile).expect("as before").to_owned() + run;
    let options = ["-DPINION_WITH_NET", "-Wall", "-Wextra", "-Wno-unused-parameter"];
    assert_eq!([said_of(&options, &service), said_of(&options, &program)], ["", ""]);
}
