//! x
/// x
pub fn is_ready(port: u16) -> bool {
    crate::http::get(port, "/readyz").is_some_and(|(s, _)| s == 200)
}
