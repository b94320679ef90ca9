//! Which of the same failures in a row is logged.

/// Whether the n-th of the same failures in a row is worth a line of the log: fewer and fewer of them are.
pub fn is_worth_a_line(times: u64) -> bool {
    times.is_power_of_two()
}

/// Logs the n-th of the same in a row, at a level where it [is worth a line](is_worth_a_line) and else for who debugs.
///
/// `log_repeated!(warn, times, error, "the API server cannot be asked")`
#[macro_export]
macro_rules! log_repeated {
    ($level:ident, $times:expr, $($what:tt)+) => {{
        let times: u64 = $times;
        if $crate::model::repeated::is_worth_a_line(times) {
            tracing::$level!(times, $($what)+);
        } else {
            tracing::debug!(times, $($what)+);
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_goes_on_is_told_ever_more_rarely() {
        let told: Vec<u64> = (1..=70).filter(|times| is_worth_a_line(*times)).collect();
        assert_eq!(told, [1, 2, 4, 8, 16, 32, 64]);
    }
}
