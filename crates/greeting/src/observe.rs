//! What a Greeting's plan looks at besides the Greeting: this process and what it has ticked.

use jiff::Timestamp;

/// What a plan looks at besides the Greeting itself.
#[derive(Clone, Debug)]
pub struct World {
    /// A token that no other process uses: of the claim whose answer this pass has not had, else a new one.
    pub token: String,
    /// Since when this process may write, without a gap.
    pub leading_since: Timestamp,
    /// The tick that this process said last.
    pub ticked: Option<Timestamp>,
}
