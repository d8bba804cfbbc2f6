//! Declaration of settings. [`super::list`] declares each setting once, and the macro `settings!`
//! generates the rest.
//!
//! ```text
//!  name, type, variable, default, help ─┬─▶ a flag of `serve`, a KVORUM_* variable, a TOML key
//!   (the type checks the range)         ├─▶ the help with its default
//!                                       ├─▶ `Settings::or`: which source wins
//!                                       ├─▶ `CompleteSettings`: each with its value or its default
//!                                       └─▶ the table in docs/reference/settings.md
//! ```
//!
//! The text of a default is the text that a user would write. For a `computed` default, which
//! depends on other settings, the text is only a description, and the value stays optional. A
//! `flag` is off unless it is named, and needs no value.

/// Declares all settings.
macro_rules! settings {
    ($(
        $name:ident: $type:ty, $variable:literal, $value:literal,
        $default_is:ident $default:literal, $help:literal;
    )*) => {
        /// The settings of a node from one source; `None` = the source does not have the setting.
        #[derive(Debug, Clone, Default, ::clap::Args, ::serde::Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
        pub(crate) struct Settings {
            $(
                #[doc = $help]
                #[arg(long, env = $variable, value_name = $value)]
                #[arg(num_args = settings!(@values $default_is), default_missing_value = "true")]
                #[arg(help = concat!($help, " [default: ", $default, "]"))]
                pub(crate) $name: Option<$type>,
            )*
        }

        /// The settings with their defaults filled in.
        #[derive(Debug)]
        pub(super) struct CompleteSettings {
            $(
                #[doc = $help]
                pub(super) $name: settings!(@type $default_is $type),
            )*
        }

        impl Settings {
            /// Merges two sources. A setting that both have is that of `self`.
            pub(super) fn or(self, other: Self) -> Self {
                Self { $($name: self.$name.or(other.$name),)* }
            }

            /// Fills in the defaults.
            pub(super) fn with_defaults(self) -> CompleteSettings {
                CompleteSettings {
                    $($name: settings!(@value $default_is $type, self.$name, $default),)*
                }
            }
        }

        /// Name, variable, value, default and help of each setting, for the documentation.
        #[cfg(test)]
        pub(super) const ROWS: &[(&str, &str, &str, &str, &str)] =
            &[$((stringify!($name), $variable, $value, $default, $help),)*];
    };
    (@values flag) => { 0..=1 };
    (@values $other:ident) => { 1..=1 };
    (@type flag $type:ty) => { bool };
    (@type fixed $type:ty) => { $type };
    (@type computed $type:ty) => { Option<$type> };
    (@value flag $type:ty, $given:expr, $default:literal) => {
        $given.is_some_and(|given| given.0)
    };
    (@value fixed $type:ty, $given:expr, $default:literal) => {
        $given.unwrap_or_else(|| {
            $default.parse::<$type>().expect("the text of a default is valid, as a test shows")
        })
    };
    (@value computed $type:ty, $given:expr, $default:literal) => { $given };
}

pub(super) use settings;
