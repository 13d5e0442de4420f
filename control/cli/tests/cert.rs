//! Tests of `pinion cert`: what it makes is checked by openssl.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A folder with a CA.
struct Authority(tempfile::TempDir);

impl Authority {
    fn new() -> Self {
        let authority = Self(tempfile::tempdir().unwrap());
        authority.ok(&["ca"]);
        authority
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pinion"));
        command.arg("cert").args(words).arg("--ca").arg(self.0.path());
        command.current_dir(self.0.path()).env_remove("PINION_SOCKET").env_remove("PINION_CONTEXT").output().unwrap()
    }

    /// Runs the command, which must succeed, and returns its output.
    fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs the command, which must refuse with bad input, and returns the error.
    fn refused(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        assert_eq!(output.stdout, b"");
        error
    }

    /// Makes a certificate, and returns what the command says of it as JSON.
    fn made(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[words, &["--output", "json"]].concat())).unwrap()
    }

    /// Has openssl verify a certificate against the CA, and returns its verdict.
    fn verify(&self, certificate: &str, options: &[&str]) -> Result<(), String> {
        let mut command = Command::new("openssl");
        command.args(["verify", "-x509_strict", "-CAfile"]).arg(self.path("ca.pem")).args(options);
        let output = command.arg(self.path(certificate)).output().expect("openssl is installed");
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// The same with the list of revoked certificates.
    fn check_revoked(&self, certificate: &str) -> Result<(), String> {
        let list = self.path("revoked.pem").display().to_string();
        self.verify(certificate, &["-crl_check", "-CRLfile", &list])
    }
}

/// Has openssl describe a file.
fn described(kind: &str, path: &Path) -> String {
    let mut command = Command::new("openssl");
    let output = command.args([kind, "-noout", "-text", "-in"]).arg(path).output().expect("openssl is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn openssl_verifies_each_certificate_for_its_purpose_only() {
    let authority = Authority::new();
    authority.ok(&["node", "--name", "edge1.example", "192.0.2.1", "--name", "2001:db8::1"]);
    authority.ok(&["operator", "alice"]);
    authority.ok(&["tenant", "demo", "bob", "--role", "admin"]);
    authority.ok(&["tenant", "demo", "deploy@ci", "--role", "viewer"]);
    let node = "nodes/edge1.example.pem";
    for name in [["-verify_hostname", "edge1.example"], ["-verify_ip", "192.0.2.1"], ["-verify_ip", "2001:db8::1"]] {
        authority.verify(node, &[&["-purpose", "sslserver"][..], &name].concat()).unwrap();
    }
    let error = authority.verify(node, &["-purpose", "sslserver", "-verify_hostname", "edge2.example"]).unwrap_err();
    assert!(error.contains("hostname mismatch"), "{error}");
    let error = authority.verify(node, &["-purpose", "sslclient"]).unwrap_err();
    assert!(error.contains("unsuitable certificate purpose"), "{error}");
    for client in ["operators/alice.pem", "tenants/demo/bob.pem", "tenants/demo/deploy@ci.pem"] {
        authority.verify(client, &["-purpose", "sslclient"]).unwrap();
        authority.check_revoked(client).unwrap();
        let error = authority.verify(client, &["-purpose", "sslserver"]).unwrap_err();
        assert!(error.contains("unsuitable certificate purpose"), "{error}");
    }
}

#[test]
fn certificates_have_the_extensions_and_names_that_nodes_read() {
    let authority = Authority::new();
    authority.ok(&["operator", "alice"]);
    authority.ok(&["tenant", "demo", "bob", "--role", "viewer"]);
    let ca = described("x509", &authority.path("ca.pem"));
    for part in [
        "Key Usage: critical\n                Certificate Sign, CRL Sign",
        "CA:TRUE, pathlen:0",
        "Subject Key Identifier",
    ] {
        assert!(ca.contains(part), "{part}: {ca}");
    }
    let bob = described("x509", &authority.path("tenants/demo/bob.pem"));
    for part in [
        "Subject: CN = bob\n",
        "URI:pinion://tenant/demo/viewer\n",
        "Key Usage: critical\n                Digital Signature\n",
        "TLS Web Client Authentication\n",
        "Basic Constraints: critical\n                CA:FALSE\n",
        "Authority Key Identifier",
        "Subject Key Identifier",
        "NIST CURVE: P-256\n",
    ] {
        assert!(bob.contains(part), "{part}: {bob}");
    }
    let alice = described("x509", &authority.path("operators/alice.pem"));
    assert!(alice.contains("URI:pinion://operator\n"), "{alice}");
}

#[test]
fn a_revoked_certificate_fails_openssls_check_and_the_others_pass() {
    let authority = Authority::new();
    let serial = authority.made(&["tenant", "demo", "carol", "--role", "admin"])["serial"].as_str().unwrap().to_owned();
    for name in ["alice", "bob", "dave"] {
        authority.ok(&["operator", name]);
    }
    assert!(authority.ok(&["revoke", "operators/alice.pem"]).contains("(alice, operator) revoked\n"));
    let with_colons =
        serial.to_uppercase().as_bytes().chunks(2).map(String::from_utf8_lossy).collect::<Vec<_>>().join(":");
    assert!(authority.ok(&["revoke", &with_colons]).contains("(carol, admin of tenant demo) revoked\n"));
    assert!(authority.ok(&["revoke", &serial]).contains("was revoked before"));
    for name in ["operators/alice.pem", "tenants/demo/carol.pem"] {
        let error = authority.check_revoked(name).unwrap_err();
        assert!(error.contains("certificate revoked"), "{error}");
    }
    for name in ["operators/bob.pem", "operators/dave.pem"] {
        authority.check_revoked(name).unwrap();
    }
    // Each change has the next number, by which a node can tell an old list.
    let list = described("crl", &authority.path("revoked.pem"));
    assert!(list.contains("X509v3 CRL Number: \n                3\n"), "{list}");
    assert!(list.contains("Authority Key Identifier"), "{list}");
}

#[test]
fn an_expired_certificate_can_be_made_and_fails_openssls_check() {
    let authority = Authority::new();
    authority.ok(&["operator", "alice", "--not-after", "2020-01-01T00:00:00Z"]);
    let error = authority.verify("operators/alice.pem", &[]).unwrap_err();
    assert!(error.contains("certificate has expired"), "{error}");
    assert!(authority.ok(&["list"]).contains("2020-01-01T00:00:00Z   expired\n"));
}

#[test]
fn a_ca_is_never_overwritten() {
    let authority = Authority::new();
    let read = || ["ca.pem", "ca.key", "revoked.pem"].map(|name| fs::read(authority.path(name)).unwrap());
    let before = read();
    assert!(authority.refused(&["ca"]).contains("a CA is never overwritten"));
    let folder = authority.path("").display().to_string();
    assert!(authority.refused(&["ca", "--out", &folder]).contains("a CA is never overwritten"));
    assert_eq!(read(), before);
    authority.ok(&["ca", "--out", "other"]);
    assert!(authority.path("other/ca.pem").is_file());
}

#[test]
fn a_certificate_is_replaced_by_a_renewal_only() {
    let authority = Authority::new();
    let first = authority.made(&["operator", "alice"]);
    let refused = authority.refused(&["operator", "alice"]);
    assert!(refused.contains("operators/alice.pem exists") && refused.contains("--renew"), "{refused}");
    let second = authority.made(&["operator", "alice", "--renew"]);
    assert_ne!(first["serial"], second["serial"]);
    authority.verify("operators/alice.pem", &[]).unwrap();
    // Both are valid, and both can be revoked.
    assert_eq!(authority.ok(&["list"]).matches("valid").count(), 2);
    authority.ok(&["revoke", first["serial"].as_str().unwrap()]);
    authority.check_revoked("operators/alice.pem").unwrap();
}

#[test]
fn a_validity_that_makes_no_sense_is_refused_and_nothing_is_made() {
    let authority = Authority::new();
    for words in [
        ["--days", "0"],
        ["--days", "-1"],
        ["--days", "40000"],
        ["--days", "ten"],
        ["--not-after", "tomorrow"],
        ["--not-after", "1969-01-01T00:00:00Z"],
    ] {
        authority.refused(&[&["operator", "alice"][..], &words].concat());
    }
    let refused = authority.refused(&["operator", "alice", "--days", "3651"]);
    assert!(refused.contains("and its CA on"), "{refused}");
    assert_eq!(authority.ok(&["list"]), "");
    assert!(!authority.path("operators").exists());
    for name in ["../alice", "", "a b", ".", "-"] {
        authority.refused(&["operator", "--", name]);
    }
    authority.refused(&["tenant", "No", "alice", "--role", "admin"]);
    authority.refused(&["tenant", "demo", "alice"]);
    authority.refused(&["node", "--name", "edge1:7443"]);
}

#[test]
fn keys_are_readable_by_their_owner_only_whatever_the_mask_is() {
    let folder = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_pinion");
    let script = format!("umask 0; {program} cert ca --out . && {program} cert operator alice --ca . --out elsewhere");
    let output = Command::new("sh").args(["-c", &script]).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for key in ["ca.key", "elsewhere/alice.key"] {
        let mode = fs::metadata(folder.path().join(key)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, 0o600, "{key}");
    }
}

#[test]
fn the_list_shows_who_has_which_certificate() {
    let authority = Authority::new();
    assert_eq!(authority.ok(&["list"]), "");
    let end = ["--not-after", "2031-05-06T07:08:09Z"];
    authority.ok(&[&["node", "--name", "edge1.example"][..], &end].concat());
    authority.ok(&[&["operator", "alice"][..], &end].concat());
    let bob = authority.made(&[&["tenant", "demo", "bob", "--role", "viewer"][..], &end].concat());
    authority.ok(&["revoke", "tenants/demo/bob.pem"]);
    let list = authority.ok(&["list"]);
    let mut lines: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.remove(0), ["NAME", "ROLE", "TENANT", "SERIAL", "UNTIL", "STATUS"]);
    let serial = bob["serial"].as_str().unwrap();
    let row = lines.iter().find(|line| line[0] == "bob").unwrap();
    assert_eq!(row[..6], ["bob", "viewer", "demo", serial, "2031-05-06T07:08:09Z", "revoked"]);
    let of_others = lines.iter().filter(|line| line[5] == "valid").map(|line| (line[0], line[1], line[2]));
    let of_others: BTreeSet<_> = of_others.collect();
    assert_eq!(of_others, BTreeSet::from([("edge1.example", "node", "-"), ("alice", "operator", "-")]));
    let json: Value = serde_json::from_str(&authority.ok(&["list", "-o", "json"])).unwrap();
    let found = json.as_array().unwrap().iter().find(|it| it["name"] == "bob").unwrap();
    assert_eq!(
        (&found["status"], &found["role"], &found["tenant"]),
        (&"revoked".into(), &"viewer".into(), &"demo".into())
    );
    assert!(found["revoked_at"].is_string());
}

#[test]
fn what_the_ca_did_not_issue_is_not_revoked() {
    let (authority, other) = (Authority::new(), Authority::new());
    let before = fs::read(authority.path("revoked.pem")).unwrap();
    other.ok(&["operator", "alice"]);
    let foreign = other.path("operators/alice.pem").display().to_string();
    assert!(authority.refused(&["revoke", &foreign]).contains("has not issued"));
    assert!(authority.refused(&["revoke", "00ff"]).contains("has not issued serial 00ff"));
    assert!(authority.refused(&["revoke", "nobody"]).contains("neither a file nor a serial number"));
    assert!(authority.refused(&["revoke", "revoked.pem"]).contains("it is no certificate in PEM"));
    assert_eq!(fs::read(authority.path("revoked.pem")).unwrap(), before);
}

#[test]
fn files_of_another_ca_are_noticed_before_anything_is_signed() {
    let (authority, other) = (Authority::new(), Authority::new());
    authority.ok(&["operator", "alice"]);
    fs::copy(other.path("revoked.pem"), authority.path("revoked.pem")).unwrap();
    assert!(authority.refused(&["revoke", "operators/alice.pem"]).contains("the CA beside it did not sign it"));
    fs::copy(other.path("ca.key"), authority.path("ca.key")).unwrap();
    assert!(authority.refused(&["operator", "bob"]).contains("it is not the key of the ca.pem beside it"));
    let empty = tempfile::tempdir().unwrap();
    let folder = empty.path().display().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_pinion")).args(["cert", "list", "--ca", &folder]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with(&format!("error: there is no CA in {folder}: make one (pinion cert ca)")), "{error}");
}

#[test]
fn the_part_of_a_nodes_configuration_that_is_printed_names_its_files() {
    let authority = Authority::new();
    let printed = authority.ok(&["node", "--name", "edge1.example"]);
    let (_, configuration) = printed.split_once("\n[api]\n").unwrap();
    let api: toml::Table = configuration.parse().unwrap();
    for key in ["certificate", "key", "client_ca", "revoked"] {
        assert!(Path::new(api[key].as_str().unwrap()).is_file(), "{key}: {configuration}");
    }
}
