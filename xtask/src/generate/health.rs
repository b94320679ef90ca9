//! The health checks for Argo CD: the same Lua script for every kind, because all kinds have the same conditions.

use std::fmt::Write as _;

use quintet_kinds::KINDS;

use super::{comment, header};

/// The script. The tests run it with the interpreter of Argo CD.
const SCRIPT: &str = include_str!("health.lua");

/// The part of Argo CD's ConfigMap with the checks.
pub(super) fn checks() -> String {
    let mut text = header("crates/kinds and xtask/src/generate/health.lua");
    text.push_str(&comment("Add these health checks to Argo CD's ConfigMap: see docs/gitops.md.", 0));
    text.push_str("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: argocd-cm\ndata:\n");
    let keys = KINDS.map(|kind| {
        let resource = (kind.resource)();
        format!("  resource.customizations.health.{}_{}", resource.group, resource.kind)
    });
    for (index, key) in keys.iter().enumerate() {
        if index == 0 {
            let _ = writeln!(text, "{key}: &health |");
            for line in SCRIPT.lines() {
                let _ = writeln!(text, "    {line}");
            }
        } else {
            let _ = writeln!(text, "{key}: *health");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn every_kind_has_the_script() {
        let config: Value = serde_saphyr::from_str(&checks()).unwrap();
        let data = config["data"].as_object().unwrap();
        assert_eq!(data.len(), KINDS.len());
        assert!(data.contains_key("resource.customizations.health.example.com_Greeting"), "{data:?}");
        assert!(data.values().all(|script| script == SCRIPT));
    }
}
