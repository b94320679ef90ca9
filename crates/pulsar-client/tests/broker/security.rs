//! Tokens, client certificates and TLS.

use std::process::Stdio;
use std::time::{Duration, SystemTime};

use quintet_localcluster::pulsar::issuer::{AUDIENCE, CLIENT_SECRET};
use quintet_localcluster::pulsar::{Broker, Lifetime, ROLE};

use crate::program::{
    Consumer, own_file, produce_with, producer, replace, until, with_certificates, with_issuer, with_tls,
    with_tokens,
};

fn path(file: &std::path::Path) -> String {
    file.to_string_lossy().into_owned()
}

fn token_file(broker: &Broker, name: &str, token: &str) -> String {
    path(&own_file(broker, name, token))
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn an_accepted_token_lets_messages_through() {
    let broker = with_tokens();
    let token = path(&broker.token_file());
    let variables = [("PULSAR_TOKEN_FILE", token.as_str())];
    let consumer = Consumer::start(&broker.service_url(), "tokens", &variables);
    consumer.until_ready(200);
    let output = produce_with(&broker.service_url(), "tokens", &variables, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(consumer.until_messages(1), ["Sample Message"]);
    consumer.stop().well();
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn a_rejected_token_ends_the_producer_and_not_the_consumer() {
    let broker = with_tokens();
    let past = SystemTime::now() - Duration::from_mins(1);
    let tokens = [
        token_file(&broker, "foreign", &broker.foreign_token(ROLE)),
        token_file(&broker, "expired", &broker.token(ROLE, Some(past)).unwrap()),
        token_file(&broker, "nonsense", "nonsense"),
    ];
    for token in &tokens {
        let variables = [("PULSAR_TOKEN_FILE", token.as_str())];
        let consumer = Consumer::start(&broker.service_url(), "refused", &variables);
        assert!(consumer.until_ready(401).contains("the broker rejected the credentials"));
        let output = produce_with(&broker.service_url(), "refused", &variables, &[]);
        assert_eq!(output.status.code(), Some(3));
        assert!(output.stdout.is_empty());
        replace(std::path::Path::new(token), "");
        consumer.until_said("does not contain a token");
        replace(std::path::Path::new(token), &broker.token(ROLE, None).unwrap());
        consumer.until_ready(200);
        consumer.stop().well();
    }
    let ended = Consumer::start(&broker.service_url(), "refused", &[]).ended();
    assert!(ended.badly(3).contains("requires a token"), "{:?}", ended.stderr);
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn waits_for_missing_files() {
    let broker = with_tokens();
    let consumer =
        Consumer::start(&broker.service_url(), "t", &[("PULSAR_TOKEN_FILE", "/nonexistent/token")]);
    assert!(consumer.until_ready(401).contains("cannot read the token file /nonexistent/token"));
    consumer.stop().well();
    let server = broker.service_url().replace("pulsar://", "pulsar+ssl://");
    let consumer = Consumer::start(&server, "t", &[("PULSAR_TLS_CA_FILE", "/nonexistent/ca")]);
    assert!(consumer.until_ready(525).contains("cannot read the CA file /nonexistent/ca"));
    consumer.stop().well();
    let variables = [("PULSAR_TOKEN_FILE", "/nonexistent/token")];
    let output = produce_with(&broker.service_url(), "t", &variables, &[]);
    assert_eq!(output.status.code(), Some(4));
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn a_role_without_permission_waits_for_it() {
    let broker = with_tokens();
    let admin = broker.admin().unwrap();
    admin.create_namespace("public/others").unwrap();
    let token = path(&broker.token_file());
    let consumer =
        Consumer::start(&broker.service_url(), "public/others/t", &[("PULSAR_TOKEN_FILE", &token)]);
    consumer.until_ready(403);
    admin.grant("public/others", ROLE).unwrap();
    consumer.until_ready(200);
    consumer.stop().well();
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn reads_a_new_token_when_the_old_one_expires() {
    let broker = with_tokens();
    let short = || {
        let ends = SystemTime::now() + Duration::from_secs(30);
        broker.token(ROLE, Some(ends)).unwrap()
    };
    let renewed = own_file(&broker, "renewed", &short());
    let forgotten = own_file(&broker, "forgotten", &short());
    let [renewed_path, forgotten_path] = [path(&renewed), path(&forgotten)];
    let start =
        |file: &str| Consumer::start(&broker.service_url(), "runs-out", &[("PULSAR_TOKEN_FILE", file)]);
    let (first, second) = (start(&renewed_path), start(&forgotten_path));
    first.until_ready(200);
    second.until_ready(200);
    replace(&renewed, &broker.token(ROLE, None).unwrap());
    // The broker requests another token from both, and accepts one.
    assert!(second.until_ready(401).contains("the broker rejected the credentials"));
    replace(&forgotten, &broker.token(ROLE, None).unwrap());
    second.until_ready(200);
    second.stop().well();
    assert_eq!((first.metric("reconnects_total"), first.metric("connected")), (0, 1));
    // A new connection uses the new token too.
    broker.admin().unwrap().unload("runs-out").unwrap();
    first.until_said("retrying");
    first.until_ready(200);
    first.stop().well();
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn tls_needs_the_brokers_ca() {
    let broker = with_tls("tls", Lifetime::Year);
    let ca = path(&broker.ca_file());
    let other = with_tls("tls-expired", Lifetime::Expired);
    let other_ca = path(&other.ca_file());
    for server in [broker.service_url(), broker.service_url().replace("127.0.0.1", "localhost")] {
        let consumer = Consumer::start(&server, "tls", &[("PULSAR_TLS_CA_FILE", &ca)]);
        consumer.until_ready(200);
        let output = produce_with(&server, "tls", &[("PULSAR_TLS_CA_FILE", &ca)], &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(consumer.until_messages(1), ["Sample Message"]);
        consumer.stop().well();
    }
    for variables in [&[("PULSAR_TLS_CA_FILE", other_ca.as_str())][..], &[]] {
        let consumer = Consumer::start(&broker.service_url(), "tls", variables);
        assert!(consumer.until_ready(525).contains("invalid peer certificate"), "{variables:?}");
        consumer.stop().well();
    }
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn authenticates_with_a_client_certificate_and_reads_a_new_one() {
    let broker = with_certificates();
    let server = broker.service_url();
    let mine = broker.client_files().map(|file| std::fs::read_to_string(file).unwrap());
    let of_another_ca = with_tls("tls", Lifetime::Year).client_files();
    let [certificate, key] = of_another_ca.map(|file| std::fs::read_to_string(file).unwrap());
    let [certificate, key] =
        [own_file(&broker, "client.crt", &certificate), own_file(&broker, "client.key", &key)];
    let [ca, certificate_path, key_path] = [&broker.ca_file(), &certificate, &key].map(|file| path(file));
    let variables = [
        ("PULSAR_TLS_CA_FILE", ca.as_str()),
        ("PULSAR_TLS_CERT_FILE", &certificate_path),
        ("PULSAR_TLS_KEY_FILE", &key_path),
    ];
    let consumer = Consumer::start(&server, "certificates", &variables);
    assert!(consumer.until_ready(525).contains("received fatal alert"));
    replace(&certificate, &mine[0]);
    consumer.until_said("do not fit");
    replace(&key, &mine[1]);
    consumer.until_ready(200);
    let output = produce_with(&server, "certificates", &variables, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(consumer.until_messages(1), ["Sample Message"]);
    consumer.stop().well();
    let ended = Consumer::start(&server, "certificates", &variables[..1]).ended();
    assert!(ended.badly(3).contains("requires a token or a client certificate"), "{:?}", ended.stderr);
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn gets_tokens_from_an_issuer_and_new_ones_when_they_expire() {
    let broker = with_issuer();
    let server = broker.service_url();
    let secret = own_file(&broker, "client-secret", "wrong");
    let (secret_path, token_url) = (path(&secret), broker.token_url());
    let variables = [
        ("PULSAR_OAUTH2_TOKEN_URL", token_url.as_str()),
        ("PULSAR_OAUTH2_CLIENT_ID", ROLE),
        ("PULSAR_OAUTH2_CLIENT_SECRET_FILE", &secret_path),
        ("PULSAR_OAUTH2_AUDIENCE", AUDIENCE),
    ];
    let consumer = Consumer::start(&server, "issued", &variables);
    assert!(consumer.until_ready(401).contains("the issuer rejects the client (invalid_client)"));
    let output = produce_with(&server, "issued", &variables, &[]);
    assert_eq!(output.status.code(), Some(3));
    replace(&secret, &format!("{CLIENT_SECRET}\n"));
    consumer.until_ready(200);
    let output = produce_with(&server, "issued", &variables, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(consumer.until_messages(1), ["Sample Message"]);
    let args = ["--message", "m", "--count", "300", "--rate", "10"];
    let load = producer(&server, "issued", &variables, &args).stderr(Stdio::piped()).spawn().unwrap();
    // The broker requests another token when one has expired.
    let reconnects = consumer.metric("reconnects_total");
    let log = || std::fs::read_to_string(broker.log()).unwrap();
    until("two tokens have expired", || {
        (log().matches("Refreshing authentication").count() >= 2).then_some(())
    });
    assert_eq!((consumer.metric("reconnects_total"), consumer.metric("connected")), (reconnects, 1));
    let output = load.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !said.contains("Retrying"), "{said}");
    // Without an issuer, a consumer waits for it.
    broker.stop_issuer().unwrap();
    let waiting = Consumer::start(&server, "issued", &variables);
    assert!(waiting.until_ready(502).contains("cannot get a token from http://127.0.0.1:"));
    broker.start_issuer().unwrap();
    waiting.until_ready(200);
    waiting.stop().well();
    let said = consumer.stop();
    assert!(!said.stderr.concat().contains(CLIENT_SECRET));
}

#[test]
#[ignore = "needs a broker: cargo xtask test"]
fn waits_until_an_expired_certificate_is_renewed() {
    let broker = with_tls("tls-expired", Lifetime::Expired);
    let ca = path(&broker.ca_file());
    let consumer = Consumer::start(&broker.service_url(), "renewed", &[("PULSAR_TLS_CA_FILE", &ca)]);
    assert!(consumer.until_ready(525).contains("expired"));
    broker.renew_certificate(Lifetime::Year).unwrap();
    consumer.until_ready(200);
    consumer.stop().well();
    send_over_tls(&broker, &ca);
}

fn send_over_tls(broker: &Broker, ca: &str) {
    let output = produce_with(&broker.service_url(), "renewed", &[("PULSAR_TLS_CA_FILE", ca)], &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
