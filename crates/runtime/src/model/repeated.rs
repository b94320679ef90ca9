//! Decides which repetitions of a failure are logged.

/// Whether to log the n-th equal failure in a row; the gaps between logged ones grow.
pub fn is_worth_a_line(times: u64) -> bool {
    times.is_power_of_two()
}

/// Logs the n-th equal failure in a row: at the given level if it [is worth a line](is_worth_a_line), else at debug.
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
    fn logs_a_repeated_failure_less_and_less_often() {
        let logged: Vec<u64> = (1..=70).filter(|times| is_worth_a_line(*times)).collect();
        assert_eq!(logged, [1, 2, 4, 8, 16, 32, 64]);
    }
}
