//! Enums of the words in a node's JSON. Each enum is declared once, for the node that writes the
//! words and for the commands that read them. An unknown word of a later release is kept and shown
//! as received.

/// Declares an enum of words, with a further variant for unknown words.
macro_rules! words {
    ($(#[$about:meta])* $visible:vis enum $name:ident {
        $($(#[$of:meta])* $variant:ident = $word:literal,)+
    }) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        $visible enum $name {
            $($(#[$of])* #[serde(rename = $word)] $variant,)+
            /// Another word, from a node of a later release.
            #[serde(untagged)]
            Other(String),
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self {
                    $(Self::$variant => $word,)+
                    Self::Other(word) => word,
                })
            }
        }
    };
}

pub(crate) use words;

#[cfg(test)]
mod tests {
    words! {
        /// A taste, an example for the test.
        enum Taste {
            /// A word without spaces.
            Sweet = "sweet",
            /// A word with spaces.
            SweetAndSour = "sweet and sour",
        }
    }

    #[test]
    fn an_unknown_word_of_a_later_release_is_kept_and_shown() {
        let of = |json: &str| serde_json::from_str::<Taste>(json).unwrap();
        assert_eq!(of("\"sweet\""), Taste::Sweet);
        for word in ["sweet", "sweet and sour", "umami", ""] {
            let json = format!("\"{word}\"");
            assert_eq!(serde_json::to_string(&of(&json)).unwrap(), json);
            assert_eq!(of(&json).to_string(), word);
        }
        assert_eq!(format!("{:6}|", Taste::Sweet), "sweet |");
        assert_eq!(of("\"umami\""), Taste::Other("umami".to_owned()));
        assert!(serde_json::from_str::<Taste>("7").is_err());
    }
}
