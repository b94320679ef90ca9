//! x
/// x
#[derive(Debug, clap::Args)]
pub struct Args {}
/// x
pub fn run(_: &Args) -> anyhow::Result<()> {
    Ok(())
}
