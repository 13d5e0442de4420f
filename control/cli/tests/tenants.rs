//! Tests of what the built `pinion` command does with tenants, against a control plane with a fake data plane.

use std::fs;
use std::process::Output;

use crate::support::Served;
use tokio::process::Command;

const TENANTS: &str = r#"version = "pinion.v1"

[[tenant]]
name = "lab"
weight = 3
class_max = "latency"
memory_mib = 512
cpu_per_second_ms = 1500
chains_max = 10
ports = ["lan", "wan"]
addresses = ["10.77.0.0/16"]

[[tenant]]
name = "shop"
"#;

async fn pinion(served: &Served, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinion"));
    command.env("PINION_SOCKET", &served.socket).args(arguments).output().await.unwrap()
}

/// Runs the command, which must succeed, and returns its output.
async fn ok(served: &Served, arguments: &[&str]) -> String {
    let output = pinion(served, arguments).await;
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

async fn json(served: &Served, arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&ok(served, &[arguments, &["-o", "json"]].concat()).await).unwrap()
}

/// Runs the command, which must fail for its input, and returns the error.
async fn refused(served: &Served, arguments: &[&str]) -> String {
    let output = pinion(served, arguments).await;
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap().trim_end().to_owned()
}

fn write(served: &Served, name: &str, text: &str) -> String {
    let path = served.folder.path().join(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[tokio::test]
async fn tenants_are_applied_listed_described_and_deleted() {
    let served = Served::start().await;
    assert_eq!(ok(&served, &["get", "tenants"]).await, "");
    let manifest = write(&served, "tenants.toml", TENANTS);
    assert_eq!(ok(&served, &["apply", "-f", &manifest]).await, "tenant/lab created\ntenant/shop created\n");
    assert_eq!(ok(&served, &["apply", "-f", &manifest]).await, "tenant/lab unchanged\ntenant/shop unchanged\n");

    let table = ok(&served, &["get", "tenants"]).await;
    let expected = "NAME   WEIGHT   CLASS MAX    MEMORY     STATE   CPU A SECOND   PORTS     ADDRESSES\n\
                    lab    3        latency      512.0MiB   -       1500ms         lan,wan   10.77.0.0/16\n\
                    shop   1        throughput   -          -       -              -         -\n";
    assert_eq!(table, expected);
    let one = json(&served, &["get", "tenant", "lab"]).await;
    assert_eq!((&one[0]["name"], &one[0]["weight"], &one[0]["state_mib"]), (&"lab".into(), &3.into(), &().into()));
    assert_eq!(one[0]["addresses"], serde_json::json!(["10.77.0.0/16"]));
    assert_eq!(refused(&served, &["get", "tenants", "nope"]).await, "error: there is no tenant \"nope\"");

    let described = ok(&served, &["describe", "tenant", "lab"]).await;
    for line in [
        "Tenant:                  lab\n",
        "\nClass:                   latency at most\n",
        "\nState:                   the node's default\n",
        "\nChains:                  at most 10\n",
        "\nPorts:                   lan\n                         wan\n",
        "\nOutbound flows:          no\n",
        "\nchains              0      -            10          0\n",
        "\nhistory revisions   1      500          1000        -\n",
    ] {
        assert!(described.contains(line), "{line:?} is missing in {described}");
    }
    let described = json(&served, &["describe", "tenant", "lab"]).await;
    assert_eq!((&described["tenant"], &described["terms"]["weight"]), (&"lab".into(), &3.into()));

    assert_eq!(ok(&served, &["delete", "tenant", "shop"]).await, "tenant/shop deleted\n");
    assert_eq!(refused(&served, &["delete", "tenant", "shop"]).await, "error: there is no tenant shop");
    assert_eq!(refused(&served, &["delete", "tenant", "Shop"]).await, "error: there is no tenant \"Shop\"");
    served.stop().await;
}

#[tokio::test]
async fn tenants_and_their_objects_are_applied_as_one_change_and_judged_together() {
    let served = Served::start().await;
    let tenants = write(&served, "tenants.toml", TENANTS);
    fs::write(served.folder.path().join("echo.wasm"), crate::support::wasm("echo")).unwrap();
    let objects = "version = \"pinion.v1\"\ntenant = \"lab\"\n[[module]]\nname = \"echo\"\npath = \"echo.wasm\"\n\
                   [[chain]]\nname = \"echo\"\n[[chain.stage]]\nmodule = \"echo\"\n\
                   [[rule]]\nname = \"ping\"\npolicy = \"shared\"\nchain = \"echo\"\n";
    let manifest = write(&served, "lab.toml", objects);
    let all = ["apply", "-f", &tenants, &manifest];
    let error = refused(&served, &all).await;
    assert!(
        error
            .starts_with("error: rule lab/ping: it matches packets of every port, and its tenant is granted some only")
    );
    assert_eq!(json(&served, &["get", "tenants"]).await, serde_json::json!([]));

    write(&served, "lab.toml", &format!("{objects}match = {{ port = \"lan\", source = \"10.77.1.0/24\" }}\n"));
    let applied = ok(&served, &all).await;
    let effects =
        "tenant/lab created\ntenant/shop created\nmodule/echo created\nchain/echo created\nrule/ping created\n";
    assert_eq!(applied, effects);
    let error = refused(&served, &["delete", "tenant", "lab"]).await;
    assert_eq!(
        error,
        "error: tenant lab still has objects (1 module, 1 chain, 1 rule): delete them first, or all together"
    );
    let deleted = ok(&served, &["delete", "-f", &tenants, &manifest]).await;
    assert_eq!(deleted, effects.replace("created", "deleted"));
    served.stop().await;
}

#[tokio::test]
async fn errors_in_a_manifest_of_tenants_name_its_line_and_key() {
    let served = Served::start().await;
    let manifest = write(&served, "tenants.toml", &TENANTS.replace("weight = 3", "weight = 3000"));
    let error = refused(&served, &["apply", "-f", &manifest]).await;
    let expected = "5: tenant.weight: invalid value: integer `3000`, expected a whole number from 1 to 1000";
    assert_eq!(error, format!("error: {manifest}:{expected}"));
    served.stop().await;
}
