//! The configuration of a node's programs: pure functions of the node's number and the paths of its files.

use std::path::Path;

use serde_json::{Value, json};

use super::{images, network};

/// The socket of containerd, in the node's `/run`.
pub(super) const SOCKET: &str = "/run/containerd/containerd.sock";

/// A node's lease duration and the control plane's grace period. Kubernetes has 40 s and 50 s.
pub(super) const LEASE_SECONDS: u32 = 8;
pub(in crate::cluster) const GRACE: &str = "12s";

/// containerd's registry hosts: the images come from a registry at a port of the control plane's address.
pub(super) fn hosts(port: u16) -> String {
    let server = format!("http://{}:{port}", network::CONTROL_PLANE);
    format!("server = \"{server}\"\n[host.\"{server}\"]\ncapabilities = [\"pull\", \"resolve\"]\n")
}

pub(super) fn containerd(bin: &Path, certificates: &Path, cni: &Path) -> String {
    let quoted = |path: &Path| Value::from(path.to_string_lossy()).to_string();
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = {certificates}
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{sandbox}"
[plugins.'io.containerd.cri.v1.runtime']
  # Otherwise, root that may not lower its OOM score could start no pod.
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [{bin}]
    conf_dir = {cni}
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = {runc}
      SystemdCgroup = false
"#,
        certificates = quoted(certificates),
        sandbox = images::PAUSE,
        bin = quoted(bin),
        cni = quoted(cni),
        runc = quoted(&bin.join("runc")),
    )
}

/// The CNI configuration: each pod has a cable to its node.
pub(super) fn cni(number: u8) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "quintet",
        "plugins": [{
            "type": "ptp", "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "ranges": [[{ "subnet": network::pods(number) }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    })
}

pub(super) fn kubelet(number: u8, name: &str, pki: &Path) -> Value {
    let file = |name: &str| pki.join(name).display().to_string();
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "address": network::node(number).to_string(),
        "readOnlyPort": 0, "healthzPort": 0,
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "cgroupDriver": "cgroupfs", "failCgroupV1": false, "failSwapOn": false,
        "makeIPTablesUtilChains": false, "oomScoreAdj": 0, "serializeImagePulls": false,
        "authentication": {
            "anonymous": { "enabled": false }, "webhook": { "enabled": true },
            "x509": { "clientCAFile": file("ca.crt") },
        },
        "authorization": { "mode": "Webhook" },
        "tlsCertFile": file(&format!("{name}.crt")), "tlsPrivateKeyFile": file(&format!("{name}.key")),
        // No DNS server answers there: the cluster has none, and pods must not resolve the machine's names.
        "clusterDNS": [network::CONTROL_PLANE.to_string()], "clusterDomain": "cluster.local", "resolvConf": "",
        "nodeLeaseDurationSeconds": LEASE_SECONDS, "nodeStatusUpdateFrequency": "2s",
        // The disk is the machine's, which may be full.
        "evictionHard": {
            "memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%",
        },
        "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
    })
}

/// kube-proxy's flags, except its kubeconfig. They change no setting of the machine.
pub(super) fn kube_proxy(number: u8, name: &str) -> Vec<String> {
    vec![
        "--proxy-mode=nftables".to_owned(),
        format!("--hostname-override={name}"),
        format!("--bind-address={}", network::node(number)),
        format!("--cluster-cidr={}", network::PODS),
        "--healthz-bind-address=127.0.0.1:10256".to_owned(),
        "--metrics-bind-address=127.0.0.1:10249".to_owned(),
        "--oom-score-adj=0".to_owned(),
        "--conntrack-max-per-core=0".to_owned(),
        "--conntrack-tcp-timeout-established=0".to_owned(),
        "--conntrack-tcp-timeout-close-wait=0".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_listens_on_its_address() {
        let kubelet = kubelet(2, "node-2", Path::new("/p"));
        assert_eq!(kubelet["address"], "10.88.0.12");
        assert_eq!(kubelet["tlsCertFile"], "/p/node-2.crt");
        assert_eq!((&kubelet["readOnlyPort"], &kubelet["healthzPort"]), (&json!(0), &json!(0)));
        let proxy = kube_proxy(2, "node-2");
        assert!(proxy.contains(&"--bind-address=10.88.0.12".to_owned()));
        assert!(proxy.iter().filter(|flag| flag.contains("127.0.0.1:")).count() == 2);
        assert_eq!(cni(2)["plugins"][0]["ipam"]["ranges"][0][0]["subnet"], "10.89.2.0/24");
    }

    #[test]
    fn the_configuration_of_containerd_has_its_paths() {
        let text = containerd(Path::new("/c d/bin"), Path::new("/certs"), Path::new("/cni"));
        assert!(text.contains("bin_dirs = [\"/c d/bin\"]"), "{text}");
        assert!(text.contains("BinaryName = \"/c d/bin/runc\""), "{text}");
        assert!(text.contains(&format!("sandbox = \"{}\"", images::PAUSE)), "{text}");
        let parsed: toml::Value = toml::from_str(&text).unwrap();
        assert_eq!(parsed["version"].as_integer(), Some(3));
        let hosts: toml::Value = toml::from_str(&hosts(5000)).unwrap();
        assert_eq!(hosts["server"].as_str(), Some("http://10.88.0.1:5000"));
    }
}
