//! Whether the API server serves the kinds, with the schemas of this version.
//!
//! Every user may read the OpenAPI document of the API server, but not the CustomResourceDefinitions.

use std::collections::BTreeMap;

use quintet_kinds::{KINDS, Kind};
use quintet_runtime::model::fingerprint::Schema;
use quintet_runtime::model::resource::Resource;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::finding::{Fact, Finding};
use super::installation::Installation;
use super::leader::VERSION;

/// The fingerprints of this version, as `cargo xtask generate` writes them.
const FINGERPRINTS: &str = include_str!("fingerprints.json");

/// The OpenAPI document of a group and version. The schemas stay text, because only one of them is decoded.
#[derive(Deserialize)]
pub struct Document {
    components: Components,
}

#[derive(Deserialize)]
struct Components {
    #[serde(default)]
    schemas: BTreeMap<String, Box<RawValue>>,
}

impl Document {
    /// The fingerprint of a kind's schema; None if the document has no such kind.
    pub fn fingerprint(&self, resource: &Resource) -> Fact<Option<String>> {
        let Resource { version, kind, .. } = resource;
        // The name of a schema begins with the reversed group.
        let name = format!(".{version}.{kind}");
        let Some((_, schema)) = self.components.schemas.iter().find(|(key, _)| key.ends_with(&name)) else {
            return Ok(None);
        };
        let schema: Schema = serde_json::from_str(schema.get())
            .map_err(|error| format!("cannot decode the schema of {}: {error}", resource.crd_name()))?;
        Ok(Some(schema.fingerprint()))
    }
}

/// The enabled kinds.
pub fn enabled(installation: &Installation) -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().filter(move |kind| installation.flags.kinds.contains(&kind.controller))
}

/// Whether the API server serves these types with the schemas of this version. A fact is the fingerprint of the served schema;
/// None if the type is not served.
pub fn definitions(installation: &Installation, served: &[(Resource, Fact<Option<String>>)]) -> Vec<Finding> {
    let expected: BTreeMap<String, String> = serde_json::from_str(FINGERPRINTS).unwrap_or_default();
    let judge = |(resource, served): &(Resource, Fact<Option<String>>)| {
        let name = resource.crd_name();
        match served {
            Ok(Some(fingerprint)) if Some(fingerprint) == expected.get(&name) => None,
            Ok(Some(_)) => {
                let why = format!("The schema of {name} differs from the schema of quintet {VERSION}.");
                Some(Finding::problem(why, &installation.upgrade))
            }
            Ok(None) => {
                let why = format!("The API server does not serve {name}, version {}.", resource.version);
                Some(Finding::problem(why, &installation.upgrade))
            }
            Err(why) => Some(Finding::unknown(why)),
        }
    };
    let findings: Vec<Finding> = served.iter().filter_map(judge).collect();
    if findings.is_empty() {
        let why =
            format!("The API server serves {} kinds with the schemas of quintet {VERSION}.", served.len());
        return vec![Finding::well(why)];
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::finding::Verdict;
    use super::super::installation::usual;
    use super::*;

    #[test]
    fn fingerprints_are_those_of_the_definitions() {
        let expected: BTreeMap<String, String> = serde_json::from_str(FINGERPRINTS).unwrap();
        assert_eq!(expected.len(), KINDS.len());
        for definition in quintet_kinds::definitions() {
            let schema = definition.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
            let schema: Schema = serde_json::from_value(serde_json::to_value(schema).unwrap()).unwrap();
            let name = definition.metadata.name.unwrap();
            assert_eq!(
                expected.get(&name),
                Some(&schema.fingerprint()),
                "{name}: run `cargo xtask generate`"
            );
        }
    }

    #[test]
    fn finds_the_schema_of_a_kind() {
        let schema = json!({ "type": "object", "properties": { "spec": { "type": "object" } } });
        let document = json!({ "components": { "schemas": {
            "com.github.christianb93.v1.BookList": { "type": "array" },
            "com.github.christianb93.v1.Book": schema,
            "com.github.christianb93.v2.Book": { "type": "object" },
        } } });
        let document: Document = serde_json::from_str(&document.to_string()).unwrap();
        let book = Resource::custom("christianb93.github.com", "v1", "Book", "books");
        let expected: Schema = serde_json::from_value(schema).unwrap();
        assert_eq!(document.fingerprint(&book), Ok(Some(expected.fingerprint())));
        let other = Resource::custom("christianb93.github.com", "v3", "Book", "books");
        assert_eq!(document.fingerprint(&other), Ok(None));
    }

    #[test]
    fn reports_missing_and_different_definitions() {
        let resources: Vec<Resource> = enabled(&usual()).map(|kind| (kind.resource)()).collect();
        let [job, book] = resources[..] else { panic!("{resources:?}") };
        let expected: BTreeMap<String, String> = serde_json::from_str(FINGERPRINTS).unwrap();
        let right = |resource: &Resource| Ok(expected.get(&resource.crd_name()).cloned());
        let check = |served: [Fact<Option<String>>; 2]| {
            let [first, second] = served;
            definitions(&usual(), &[(job, first), (book, second)])
        };
        let findings = check([right(&job), right(&book)]);
        assert_eq!(findings[0].verdict, Verdict::Well);
        assert!(findings[0].sentence.contains("2 kinds"), "{findings:?}");
        let findings = check([Ok(None), Ok(Some("other".to_owned()))]);
        let text = |at: usize| (findings[at].verdict, findings[at].sentence.as_str());
        assert_eq!(
            text(0),
            (Verdict::Problem, "The API server does not serve daemonjobs.dj.dysproz.io, version v1.")
        );
        assert!(text(1).1.starts_with("The schema of books.christianb93.github.com differs"), "{findings:?}");
        let findings = check([Err("denied".to_owned()), right(&book)]);
        assert_eq!(findings, [Finding::unknown("denied")]);
    }
}
