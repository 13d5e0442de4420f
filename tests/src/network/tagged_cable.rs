//! A cable that carries a VLAN. Its host sees untagged frames, as behind a switch's access port. Kernels without VLAN devices can have one.
//!
//! ```text
//!   node's namespace                    host's namespace
//!   interface ---tagged--- "trunk" <--> a program <--untagged--> tap "eth0"
//! ```

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use crate::network::namespace::Namespace;

const TRUNK: &str = "trunk";
const PROGRAM: &str = include_str!("tagged_cable.py");

/// See the module. Ends when dropped.
#[derive(Debug)]
pub struct TaggedCable {
    program: Child,
}

impl TaggedCable {
    /// Connects an interface in one namespace, whose frames are tagged with a VLAN, with one in another namespace, whose frames are not.
    ///
    /// # Panics
    /// If one of them cannot be made.
    #[track_caller]
    #[must_use]
    pub fn new(id: u16, (node, tagged): (&Namespace, &str), (host, plain): (&Namespace, &str)) -> Self {
        node.connect(tagged, host, TRUNK);
        // Otherwise the program would outlive a test that is killed.
        let mut command = host.command("setpriv");
        let mut program = command
            .args(["--pdeathsig", "KILL", "python3", "-c", PROGRAM, TRUNK, plain, &id.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 can be run: `make install-test` installs it");
        let mut said = String::new();
        BufReader::new(program.stdout.take().expect("a pipe")).read_line(&mut said).expect("it says when it is ready");
        assert_eq!(said, "ready\n", "the cable's program cannot run");
        host.ip(&format!("link set {plain} up"));
        Self { program }
    }

    /// Returns whether all frames from the node have had the VLAN's tag until now.
    ///
    /// # Panics
    /// If the program cannot be asked.
    #[must_use]
    pub fn all_were_tagged(&mut self) -> bool {
        self.program.try_wait().expect("its child").is_none()
    }
}

impl Drop for TaggedCable {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}
