//! Which API server: the kubeconfig or the ServiceAccount of the pod; and the name of this process.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use kube::Config;
use kube::config::{Cluster, KubeConfigOptions, Kubeconfig, KubeconfigError};
use quintet_runtime::model::clock::Clock;

use crate::api_client::ClusterArgs;

/// The client configuration, from the kubeconfig or else from the pod's ServiceAccount. The client reloads a certificate
/// authority from a file when the file changes.
pub async fn configure(args: &ClusterArgs) -> Result<Config> {
    let Some((name, kubeconfig)) = find_kubeconfig(args)? else {
        if args.context.is_some() {
            bail!("--context needs a kubeconfig, and none was found: pass --kubeconfig or set KUBECONFIG");
        }
        return Config::incluster().context(
            "no cluster is configured: pass --kubeconfig, set KUBECONFIG, or run in a pod with a ServiceAccount",
        );
    };
    let cluster = cluster_of(&kubeconfig, args.context.as_deref());
    // HTTPS_PROXY is ignored, not rejected: kube sets it for every kubeconfig despite NO_PROXY, and the API server may be
    // reachable without the proxy.
    if cluster.and_then(|cluster| cluster.proxy_url.as_deref()).is_some_and(|url| !url.is_empty()) {
        bail!(
            "cannot use {name}: its cluster has a proxy-url, which Quintet does not support. Remove proxy-url, or run \
             Quintet where it reaches the API server directly"
        );
    }
    let authority = cluster.and_then(authority_file);
    let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .with_context(|| format!("cannot use {name}"))?;
    config.root_cert_file = authority;
    Ok(config)
}

/// The kubeconfig and its name in messages; None if there is none. An unreadable kubeconfig is an error, so that Quintet
/// never falls back to another cluster.
fn find_kubeconfig(args: &ClusterArgs) -> Result<Option<(String, Kubeconfig)>> {
    let (name, read) = if let Some(path) = &args.kubeconfig {
        (format!("the kubeconfig {}", path.display()), Kubeconfig::read_from(path))
    } else if let Some(read) = Kubeconfig::from_env().transpose() {
        ("the kubeconfig of $KUBECONFIG".to_owned(), read)
    } else {
        match Kubeconfig::read() {
            Err(KubeconfigError::FindPath) => return Ok(None),
            Err(KubeconfigError::ReadConfig(_, path)) if !path.exists() => return Ok(None),
            read => ("the kubeconfig ~/.kube/config".to_owned(), read),
        }
    };
    let kubeconfig = read.with_context(|| format!("cannot read {name}"))?;
    Ok(Some((name, kubeconfig)))
}

/// The cluster of a context.
fn cluster_of<'a>(kubeconfig: &'a Kubeconfig, context: Option<&str>) -> Option<&'a Cluster> {
    let name = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == name)?.context.as_ref()?;
    kubeconfig.clusters.iter().find(|cluster| cluster.name == context.cluster)?.cluster.as_ref()
}

/// The file with a cluster's certificate authority; None if the kubeconfig embeds the authority, which takes precedence.
fn authority_file(cluster: &Cluster) -> Option<PathBuf> {
    let file = cluster.certificate_authority.as_ref();
    file.filter(|_| cluster.certificate_authority_data.is_none()).map(PathBuf::from)
}

/// The name of the pod in which this process runs, or of the machine.
pub fn host() -> String {
    std::env::var("POD_NAME")
        .ok()
        .or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())
        .map_or_else(|| "quintet".to_owned(), |name| name.trim().to_owned())
}

/// The pod, or the machine, of a manager with this identity.
pub fn pod_of(identity: &str) -> &str {
    identity.rsplit_once('_').map_or(identity, |(host, _)| host)
}

/// A unique identity of this process: a restarted container of the same pod is another candidate.
pub fn identity() -> String {
    let host = host();
    let unique = std::fs::read_to_string("/proc/sys/kernel/random/uuid").map_or_else(
        |_| format!("{}-{}", std::process::id(), Clock::System.now().as_nanosecond()),
        |uuid| uuid.trim().to_owned(),
    );
    format!("{host}_{unique}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_an_authority_in_a_file() {
        let text = "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
            clusters:\n\
            - {name: one, cluster: {server: 'https://one', certificate-authority: /ca.crt}}\n\
            - {name: two, cluster: {server: 'https://two', certificate-authority: /ca.crt, certificate-authority-data: eA==}}\n\
            contexts:\n- {name: a, context: {cluster: one}}\n- {name: b, context: {cluster: two}}\n";
        let kubeconfig = Kubeconfig::from_yaml(text).unwrap();
        let cluster = |context| cluster_of(&kubeconfig, context);
        assert_eq!(authority_file(cluster(None).unwrap()), Some(PathBuf::from("/ca.crt")));
        assert_eq!(authority_file(cluster(Some("b")).unwrap()), None, "embedded data takes precedence");
        assert!(cluster(Some("c")).is_none());
    }

    #[test]
    fn identities_are_unique() {
        assert_ne!(identity(), identity());
        assert_eq!(pod_of(&identity()), host());
        assert_eq!(pod_of("another-elector"), "another-elector");
    }
}
