//! Amounts that are a number or a percentage of a whole.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// How to round a percentage of a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// Round up.
    Up,
    /// Round down.
    Down,
}

/// The amount for this `whole`. None for a negative number or an invalid percentage, which the schema should reject.
pub fn scaled_value(amount: &IntOrString, whole: usize, round: Round) -> Option<usize> {
    match amount {
        IntOrString::Int(number) => usize::try_from(*number).ok(),
        IntOrString::String(percent) => {
            let percent: usize = percent.strip_suffix('%')?.parse().ok()?;
            let hundredths = whole.checked_mul(percent)?;
            Some(match round {
                Round::Up => hundredths.div_ceil(100),
                Round::Down => hundredths / 100,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_percentages_in_the_given_direction() {
        let percent = |text: &str| IntOrString::String(text.to_owned());
        assert_eq!(scaled_value(&percent("25%"), 10, Round::Up), Some(3));
        assert_eq!(scaled_value(&percent("25%"), 10, Round::Down), Some(2));
        assert_eq!(scaled_value(&percent("100%"), 7, Round::Down), Some(7));
        assert_eq!(scaled_value(&IntOrString::Int(4), 1, Round::Up), Some(4));
        for nonsense in [IntOrString::Int(-1), percent("5"), percent("x%"), percent("-1%")] {
            assert_eq!(scaled_value(&nonsense, 10, Round::Up), None);
        }
    }
}
