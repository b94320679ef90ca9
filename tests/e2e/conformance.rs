//! The fake API server answers as the real one does: the same requests and watches run on both.

use std::time::Duration;

use kube::CustomResourceExt as _;
use quintet_e2e::TestEnv;
use quintet_e2e::objects::connect;
use quintet_fake_apiserver::{Server, conformance};
use quintet_podset::api::PodSet;
use serde_json::json;
use tokio::runtime::Builder;

#[test]
fn fake_api_server_answers_as_the_real_one() {
    let env = TestEnv::new("conformance");
    let namespace = env.namespace().to_owned();
    let real = Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let client = connect(&env.cluster().kubeconfig()).await.unwrap();
        // A busy machine may be silent for some seconds.
        conformance::answers(&client, &namespace, Duration::from_secs(8)).await
    });
    let fake =
        Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
            let server = Server::new(1);
            server.define(&serde_json::to_value(PodSet::crd()).unwrap());
            server.create("test", "/api/v1/namespaces", &json!({ "metadata": { "name": namespace } }));
            conformance::answers(&server.client("script"), &namespace, Duration::from_secs(8)).await
        });
    let mut differences = Vec::new();
    for at in 0..real.len().max(fake.len()) {
        let (real, fake) = (real.get(at), fake.get(at));
        if real != fake {
            let none = "nothing".to_owned();
            differences.push(format!("real: {}\nfake: {}", real.unwrap_or(&none), fake.unwrap_or(&none)));
        }
    }
    assert!(
        differences.is_empty(),
        "{} of {} answers differ:\n{}",
        differences.len(),
        real.len(),
        differences.join("\n\n")
    );
    assert!(real.len() > 80, "the script got only {} answers", real.len());
}
