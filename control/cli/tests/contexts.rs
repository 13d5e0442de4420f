//! Tests of contexts: which node a command uses, as whom, and for which tenant.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Output;

use crate::support::{Served, wasm};
use crate::tls::{NodeFiles, TlsEnd};
use serde_json::Value;
use tokio::process::Command;

/// The home of a user: a folder with the file of contexts, a CA and manifests.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pinion"));
        command.args(words).current_dir(self.0.path());
        for variable in ["PINION_SOCKET", "PINION_CONTEXT", "PINION_TENANT", "PINION_SDK"] {
            command.env_remove(variable);
        }
        command.env("PINION_CONFIG", self.path("config.toml"));
        command
    }

    async fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().await.unwrap()
    }

    /// Runs the command, which must succeed without a warning, and returns its output.
    async fn ok(&self, words: &[&str]) -> String {
        succeeded(words, self.run(words).await)
    }

    /// Runs the command, which must fail, and returns the exit status and the error.
    async fn fails(&self, words: &[&str]) -> (i32, String) {
        let output = self.run(words).await;
        assert_eq!(output.stdout, b"", "{words:?}");
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap().trim_end().to_owned())
    }

    /// Adds the context of a Unix socket.
    async fn add_socket(&self, name: &str, served: &Served, more: &[&str]) {
        let socket = served.socket.display().to_string();
        self.ok(&[&["context", "add", name, "--socket", &socket][..], more].concat()).await;
    }

    /// Adds the context of a client of this CA, whose certificate has the given validity.
    async fn add_remote(&self, name: &str, ca: &str, host: &str, port: u16, validity: &[&str]) -> Value {
        let words = ["cert", "tenant", "demo", name, "--role", "admin", "--ca", ca, "-o", "json"];
        let made: Value = serde_json::from_str(&self.ok(&[&words[..], validity].concat()).await).unwrap();
        let file = |key: &str| made[key].as_str().unwrap().to_owned();
        let (server, ca, certificate, key) =
            (format!("{host}:{port}"), self.text("ca/ca.pem"), file("certificate"), file("key"));
        let files = ["--server", &server, "--ca", &ca, "--certificate", &certificate, "--key", &key];
        self.ok(&[&["context", "add", name][..], &files].concat()).await;
        made
    }

    /// Makes a CA and a node's certificate for `localhost`, and starts the TLS end of the node.
    async fn serve(&self, served: &Served) -> TlsEnd {
        let (certificate, key) = (self.path("ca/nodes/localhost.pem"), self.path("ca/nodes/localhost.key"));
        if !certificate.exists() {
            self.ok(&["cert", "ca"]).await;
            self.ok(&["cert", "node", "--name", "localhost"]).await;
        }
        let (client_ca, revoked) = (self.path("ca/ca.pem"), self.path("ca/revoked.pem"));
        let files = NodeFiles { certificate: &certificate, key: &key, client_ca: &client_ca, revoked: Some(&revoked) };
        TlsEnd::start(&served.socket, &files).await
    }
}

fn succeeded(words: &[&str], output: Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !error.contains("warning: "), "{words:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Writes a manifest of a module that names no tenant.
fn write_manifest(home: &Home) -> String {
    fs::write(home.path("echo.wasm"), wasm("echo")).unwrap();
    let module = "version = \"pinion.v1\"\n[[module]]\nname = \"echo\"\npath = \"echo.wasm\"\n";
    let chain = "[[chain]]\nname = \"echo\"\nstage = [{ module = \"echo\" }]\n";
    fs::write(home.path("demo.toml"), format!("{module}{chain}")).unwrap();
    home.text("demo.toml")
}

#[tokio::test]
async fn a_context_gives_commands_their_node_and_their_tenant() {
    let (served, home) = (Served::start().await, Home::new());
    home.add_socket("edge", &served, &["--tenant", "acme", "--use"]).await;
    let manifest = write_manifest(&home);
    assert_eq!(home.ok(&["apply", "-f", &manifest]).await, "module/echo created\nchain/echo created\n");
    assert!(home.ok(&["get", "chains"]).await.contains("\nacme     echo"));
    assert!(home.ok(&["describe", "chain", "echo"]).await.starts_with("Tenant:          acme\n"));
    assert_eq!(
        home.ok(&["invoke", "echo", "--data", "x"]).await,
        home.ok(&["invoke", "acme/echo", "--data", "x"]).await
    );
    home.ok(&["push", "echo.wasm"]).await;
    // What is named always wins.
    assert_eq!(home.ok(&["get", "chains", "--tenant", "other"]).await, "");
    let (status, error) = home.fails(&["describe", "chain", "echo", "--tenant", "other"]).await;
    assert_eq!((status, &*error), (2, "error: there is no chain \"echo\" of tenant other"));
    home.ok(&["push", "echo.wasm", "--tenant", "other"]).await;
    let uploads = home.ok(&["get", "uploads", "--all-tenants"]).await;
    assert!(uploads.contains("\nother ") && !home.ok(&["get", "uploads"]).await.contains("other"), "{uploads}");
    let socket = served.socket.display().to_string();
    let of_default = home.ok(&["--socket", &socket, "apply", "-f", &manifest]).await;
    assert_eq!(of_default, "module/echo created\nchain/echo created\n");
    assert!(home.ok(&["get", "chains", "-A"]).await.contains("\ndefault   echo"));
    assert_eq!(home.ok(&["delete", "-f", &manifest]).await, "module/echo deleted\nchain/echo deleted\n");
    assert_eq!(home.ok(&["get", "chains"]).await, "");
    served.stop().await;
}

#[tokio::test]
async fn an_option_beats_a_variable_and_a_socket_beats_a_context() {
    let home = Home::new();
    for name in ["current", "option", "variable"] {
        let socket = home.text(&format!("{name}.sock"));
        home.ok(&["context", "add", name, "--socket", &socket]).await;
    }
    let used = async |variables: &[(&str, &str)], words: &[&str]| -> String {
        let mut command = home.command(&[words, &["context", "show", "-o", "json"]].concat());
        let shown = succeeded(words, command.envs(variables.iter().copied()).output().await.unwrap());
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let socket = shown["socket"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        socket.trim_end_matches(".sock").to_owned()
    };
    assert_eq!(used(&[], &[]).await, "pinion");
    home.ok(&["context", "use", "current"]).await;
    let (context, socket) = (("PINION_CONTEXT", "variable"), ("PINION_SOCKET", "/by-variable"));
    assert_eq!(used(&[], &[]).await, "current");
    assert_eq!(used(&[context], &[]).await, "variable");
    assert_eq!(used(&[("PINION_CONTEXT", "")], &[]).await, "current");
    assert_eq!(used(&[context, socket], &[]).await, "by-variable");
    assert_eq!(used(&[context, socket], &["--context", "option"]).await, "option");
    assert_eq!(used(&[context, socket], &["--socket", "/by-option"]).await, "by-option");
    let (status, error) = home.fails(&["status", "--socket", "/x", "--context", "option"]).await;
    assert!(status == 2 && error.contains("give one of them"), "{error}");
    let (status, error) = home.fails(&["status", "--context", "nowhere"]).await;
    assert_eq!((status, &*error), (2, "error: there is no context nowhere: take one of current, option, variable"));
}

#[tokio::test]
async fn contexts_are_added_listed_shown_used_and_removed() {
    let home = Home::new();
    assert_eq!(home.ok(&["context", "list"]).await, "");
    assert_eq!(home.ok(&["context", "list", "-o", "json"]).await, "[]\n");
    assert_eq!(home.ok(&["context", "add", "a", "--socket", "/run/a.sock"]).await, "context/a added\n");
    home.ok(&["context", "add", "b", "--socket", "/run/b.sock", "--tenant", "demo"]).await;
    assert_eq!(home.ok(&["context", "use", "b"]).await, "context/b is the current one\n");
    let list = "CURRENT   NAME   NODE          TENANT\n          a      /run/a.sock   -\n*         b      /run/b.sock   demo\n";
    assert_eq!(home.ok(&["context", "list"]).await, list);
    let shown = home.ok(&["context", "show"]).await;
    assert!(
        shown.starts_with("Name:         b\nCurrent:      yes\nNode:         /run/b.sock\nTenant:       demo\n"),
        "{shown}"
    );
    let (status, error) = home.fails(&["context", "add", "a", "--socket", "/run/c.sock"]).await;
    assert!(status == 2 && error.starts_with("error: there is a context a already"), "{error}");
    for (words, problem) in [
        (&["context", "use", "c"][..], "there is no context c: take one of a, b"),
        (&["context", "remove", "c"], "there is no context c: take one of a, b"),
        (&["context", "add", "c"], "a context needs a node"),
        (&["context", "add", "c/d", "--socket", "/x"], "is no context's name"),
        (&["context", "add", "c", "--server", "edge1:7443"], "required arguments were not provided"),
    ] {
        let (status, error) = home.fails(words).await;
        assert!(status == 2 && error.contains(problem), "{error}");
    }
    let removed = home.run(&["context", "remove", "b"]).await;
    assert_eq!(removed.stdout, b"context/b removed\n");
    assert!(removed.stderr.starts_with(b"warning: it was the current context"));
    assert_eq!(
        home.ok(&["context", "list"]).await,
        "CURRENT   NAME   NODE          TENANT\n          a      /run/a.sock   -\n"
    );
}

#[tokio::test]
async fn the_file_of_contexts_is_private_and_a_link_to_it_stays() {
    let home = Home::new();
    fs::create_dir(home.path("dotfiles")).unwrap();
    fs::write(home.path("dotfiles/pinion.toml"), "").unwrap();
    std::os::unix::fs::symlink("dotfiles/pinion.toml", home.path("config.toml")).unwrap();
    home.ok(&["context", "add", "a", "--socket", "/run/a.sock"]).await;
    assert!(home.path("config.toml").is_symlink());
    let written = home.path("dotfiles/pinion.toml");
    assert_eq!(fs::metadata(&written).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(fs::read_to_string(written).unwrap(), "[context.a]\nsocket = \"/run/a.sock\"\n");
    assert_eq!(fs::read_dir(home.path("dotfiles")).unwrap().count(), 1);
}

#[tokio::test]
async fn contexts_that_are_added_at_the_same_time_are_all_kept() {
    let home = Home::new();
    let names: Vec<String> = (0..12).map(|number| format!("c{number}")).collect();
    let children: Vec<_> =
        names.iter().map(|name| home.command(&["context", "add", name, "--socket", "/x"]).spawn().unwrap()).collect();
    for mut child in children {
        assert!(child.wait().await.unwrap().success());
    }
    let list = home.ok(&["context", "list"]).await;
    assert!(names.iter().all(|name| list.contains(&format!(" {name} "))), "{list}");
}

#[tokio::test]
async fn a_mistake_in_the_file_is_reported_where_it_is() {
    let home = Home::new();
    let config = home.text("config.toml");
    for (text, problem) in [
        ("[context.a]\nsockett = \"/x\"\n", ":2: context.a: unknown key `sockett`"),
        ("current = 1\n", ":1: current: invalid type: integer `1`"),
        (
            "current = \"a\"\n[context.a]\n",
            ": context a: give either socket, or all of server, ca, certificate and key",
        ),
        (
            "current = \"a\"\n[context.a]\nsocket = \"/x\"\nserver = \"b:1\"\n",
            ": context a: give either socket, or all of",
        ),
        (
            "current = \"a\"\n[context.a]\nserver = \"b\"\nca = \"c\"\ncertificate = \"d\"\nkey = \"e\"\n",
            ": context a: server: \"b\" is not the address of a node: give HOST:PORT",
        ),
    ] {
        fs::write(home.path("config.toml"), text).unwrap();
        let (status, error) = home.fails(&["status"]).await;
        assert_eq!(status, 2, "{error}");
        assert!(error.starts_with(&format!("error: {config}{problem}")), "{error}");
    }
    fs::write(home.path("config.toml"), "current = \"b\"\n[context.a]\nsocket = \"/x\"\n").unwrap();
    let (_, error) = home.fails(&["status"]).await;
    assert_eq!(error, "error: there is no context b: take one of a");
}

#[tokio::test]
async fn a_new_crate_belongs_to_the_tenant_of_the_context() {
    let home = Home::new();
    let tenant = |name: &str| {
        let manifest: toml::Table = fs::read_to_string(home.path(name)).unwrap().parse().unwrap();
        manifest["tenant"].as_str().unwrap().to_owned()
    };
    home.ok(&["new", "one"]).await;
    assert_eq!(tenant("one/pinion.toml"), "demo");
    home.ok(&["context", "add", "edge", "--socket", "/x", "--tenant", "acme", "--use"]).await;
    home.ok(&["new", "two", "--template", "c"]).await;
    assert_eq!(tenant("two/pinion.toml"), "acme");
}

#[tokio::test]
async fn a_tenants_certificate_gives_commands_their_tenant() {
    let (served, home) = (Served::start().await, Home::new());
    let end = home.serve(&served).await;
    home.add_remote("bob", &home.text("ca"), "localhost", end.port, &[]).await;
    home.ok(&["context", "use", "bob"]).await;
    home.ok(&["apply", "-f", &write_manifest(&home)]).await;
    assert!(home.ok(&["get", "chains"]).await.contains("\ndemo     echo"));
    drop(end);
    served.stop().await;
}

#[tokio::test]
async fn the_command_that_cert_prints_adds_a_context_that_works() {
    let (served, home) = (Served::start().await, Home::new());
    let end = home.serve(&served).await;
    let printed = home.ok(&["cert", "tenant", "demo", "bob", "--role", "admin"]).await;
    let line = printed.lines().find_map(|line| line.trim().strip_prefix("pinion ")).unwrap();
    // The node of this test has another port than a node has by default.
    let line = line.replace("localhost:7443", &format!("localhost:{}", end.port));
    home.ok(&line.split(' ').chain(["--use"]).collect::<Vec<_>>()).await;
    assert!(home.ok(&["status"]).await.contains("Version:"));
    home.ok(&["apply", "-f", &write_manifest(&home)]).await;
    assert!(home.ok(&["get", "modules"]).await.contains("\ndemo     echo"));
    let shown = home.ok(&["context", "show"]).await;
    assert!(shown.contains("\nIdentity:     bob, admin of tenant demo\n"), "{shown}");
    // Paths in the file may be relative to it.
    let config = fs::read_to_string(home.path("config.toml")).unwrap();
    fs::write(home.path("config.toml"), config.replace(&format!("{}/", home.text("")), "").replace(&home.text(""), ""))
        .unwrap();
    assert!(fs::read_to_string(home.path("config.toml")).unwrap().contains("ca = \"ca/ca.pem\""));
    home.ok(&["status"]).await;
    drop(end);
    served.stop().await;
}

#[tokio::test]
async fn a_certificate_that_is_not_accepted_is_named_with_the_reason() {
    let (served, home) = (Served::start().await, Home::new());
    let end = home.serve(&served).await;
    home.ok(&["cert", "ca", "--out", "foreign"]).await;
    home.add_remote("expired", "ca", "localhost", end.port, &["--not-after", "2020-01-01T00:00:00Z"]).await;
    home.add_remote("foreign", "foreign", "localhost", end.port, &[]).await;
    let revoked = home.add_remote("revoked", "ca", "localhost", end.port, &[]).await;
    home.ok(&["--context", "revoked", "status"]).await;
    home.ok(&["cert", "revoke", revoked["serial"].as_str().unwrap()]).await;
    drop(end);
    // The node reads the new list.
    let end = home.serve(&served).await;
    let config = fs::read_to_string(home.path("config.toml")).unwrap();
    let port =
        config.lines().find_map(|line| line.strip_prefix("server = \"localhost:")).unwrap().trim_end_matches('"');
    fs::write(home.path("config.toml"), config.replace(port, &end.port.to_string())).unwrap();
    for (name, problem) in [
        ("expired", "it has expired, or is not valid yet: get a new one"),
        ("revoked", "it was revoked: get a new one"),
        ("foreign", "the node does not know the CA that issued it"),
    ] {
        let (status, error) = home.fails(&["--context", name, "status"]).await;
        assert_eq!(status, 2, "{name}: {error}");
        assert!(error.starts_with("error: the node at localhost:") && error.contains(problem), "{name}: {error}");
    }
    drop(end);
    served.stop().await;
}

#[tokio::test]
async fn a_node_that_cannot_be_trusted_gets_no_request() {
    let (served, home) = (Served::start().await, Home::new());
    let end = home.serve(&served).await;
    home.add_remote("by-address", "ca", "127.0.0.1", end.port, &[]).await;
    let (status, error) = home.fails(&["--context", "by-address", "status"]).await;
    assert!(status == 2 && error.contains("its certificate is for"), "{error}");
    home.add_remote("by-name", "ca", "localhost", end.port, &[]).await;
    home.ok(&["cert", "ca", "--out", "foreign"]).await;
    fs::copy(home.path("foreign/ca.pem"), home.path("ca/ca.pem")).unwrap();
    let (status, error) = home.fails(&["--context", "by-name", "status"]).await;
    assert!(status == 2 && error.contains("its certificate is not one of the CA"), "{error}");
    drop(end);
    served.stop().await;
}

#[tokio::test]
async fn a_key_that_others_may_read_is_a_warning_and_a_missing_one_an_error() {
    let (served, home) = (Served::start().await, Home::new());
    let end = home.serve(&served).await;
    let made = home.add_remote("bob", "ca", "localhost", end.port, &[]).await;
    let key = made["key"].as_str().unwrap();
    fs::set_permissions(key, fs::Permissions::from_mode(0o640)).unwrap();
    let output = home.run(&["--context", "bob", "status"]).await;
    assert!(output.status.success());
    let warning = format!("warning: others may read the key {key} (mode 0640): chmod 600 it\n");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), warning);
    fs::remove_file(key).unwrap();
    let (status, error) = home.fails(&["--context", "bob", "status"]).await;
    assert_eq!(
        (status, error),
        (2, format!("error: key {key} cannot be read: No such file or directory (os error 2)"))
    );
    drop(end);
    served.stop().await;
}
