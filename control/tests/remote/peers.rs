//! Who may connect to the Unix socket.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use pinion_control::Client;

use super::served::PATIENCE;
use crate::support::Served;

/// Gives the path of the socket to a process of another user.
const SOCKET: &str = "PINION_TEST_SOCKET";
const NOBODY: u32 = 65534;

#[tokio::test]
async fn a_user_who_is_neither_root_nor_the_nodes_own_is_closed_out_even_if_the_mode_lets_it_in() {
    if !rustix::process::geteuid().is_root() {
        // Only root can become another user.
        return;
    }
    let served = Served::start().await;
    fs::set_permissions(served.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&served.socket, fs::Permissions::from_mode(0o666)).unwrap();
    let mut other = Command::new("/proc/self/exe");
    other.args(["--exact", "remote::peers::a_client_that_is_closed_out", "--ignored", "--nocapture"]);
    other.env(SOCKET, &served.socket).current_dir("/").uid(NOBODY).gid(NOBODY);
    let output = tokio::task::spawn_blocking(move || other.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    Client::connect(&served.socket).await.unwrap().status().await.unwrap();
    served.stop().await;
}

#[test]
#[ignore = "run by the test above, as another user"]
fn a_client_that_is_closed_out() {
    let socket = std::env::var_os(SOCKET).expect("the test above gives it");
    let mut stream = UnixStream::connect(socket).expect("the mode lets everybody in");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    // A server that serves begins with settings.
    let read = stream.read(&mut [0; 9]);
    assert!(
        matches!(&read, Ok(0)) || read.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset),
        "{read:?}"
    );
}
