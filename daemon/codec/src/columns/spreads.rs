//! How often symbols occur in each class, and the means of what takes them.

/// Number of classes.
pub(super) const CLASSES: usize = 22;

/// The first class whose words have one symbol, as all after it.
pub(super) const SINGLES_FIRST: usize = 9;

/// What a class follows from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    /// Symbols of a word: 1, 2 or 4.
    pub(super) together: usize,
    /// The first symbol that has a share.
    pub(super) first: usize,
    /// How often this symbol and those after it occur, in 2^14 elements.
    pub(super) shares: &'static [u16],
    /// How far the means of what takes these symbols are from their levels, in parts of a step.
    pub(super) means: &'static [i8],
}

/// By class, from narrow to wide: each spread is 2^(1/4) times the one before. `training` says how these numbers were made.
pub(super) const SPREADS: [Spread; CLASSES] = [
    // 0.28 steps, 0.34 bits, 0.149 above the rate-distortion bound
    Spread {
        together: 4,
        first: 63,
        shares: &[817, 15567],
        means: &[81, -34],
    },
    // 0.34 steps, 0.47 bits, 0.080 above the rate-distortion bound
    Spread {
        together: 4,
        first: 63,
        shares: &[1490, 14893],
        means: &[48, -28],
    },
    // 0.40 steps, 0.74 bits, 0.087 above the rate-distortion bound
    Spread {
        together: 4,
        first: 63,
        shares: &[2973, 13374, 36],
        means: &[39, -17, -14],
    },
    // 0.48 steps, 0.98 bits, 0.080 above the rate-distortion bound
    Spread {
        together: 2,
        first: 62,
        shares: &[3, 4091, 11947, 343],
        means: &[0, 29, -10, -28],
    },
    // 0.57 steps, 1.23 bits, 0.092 above the rate-distortion bound
    Spread {
        together: 2,
        first: 62,
        shares: &[59, 4823, 10576, 924],
        means: &[18, 19, -6, -24],
    },
    // 0.67 steps, 1.48 bits, 0.087 above the rate-distortion bound
    Spread {
        together: 2,
        first: 62,
        shares: &[282, 5212, 9172, 1696, 21],
        means: &[18, 13, -3, -17, 0],
    },
    // 0.80 steps, 1.72 bits, 0.082 above the rate-distortion bound
    Spread {
        together: 2,
        first: 61,
        shares: &[16, 691, 5257, 7921, 2379, 121],
        means: &[0, 12, 8, -1, -10, -7],
    },
    // 0.95 steps, 1.95 bits, 0.077 above the rate-distortion bound
    Spread {
        together: 2,
        first: 60,
        shares: &[3, 106, 1267, 5034, 6634, 2899, 420, 20],
        means: &[0, 0, 0, 0, 0, 0, 0, 0],
    },
    // 1.13 steps, 2.22 bits, 0.081 above the rate-distortion bound
    Spread {
        together: 2,
        first: 60,
        shares: &[24, 302, 1748, 4636, 5635, 3138, 801, 94, 5],
        means: &[0, 0, 0, 0, 0, 0, 0, 0, 0],
    },
    // 1.35 steps, 2.47 bits, 0.062 above the rate-distortion bound
    Spread {
        together: 1,
        first: 59,
        shares: &[17, 110, 518, 2053, 4171, 4306, 3846, 1064, 247, 52],
        means: &[0, 49, 9, -7, 19, -6, -9, 4, -28, -63],
    },
    // 1.60 steps, 2.72 bits, 0.064 above the rate-distortion bound
    Spread {
        together: 1,
        first: 59,
        shares: &[52, 236, 973, 2125, 4081, 4153, 2266, 1866, 489, 112, 27],
        means: &[26, 6, 3, 23, -9, 1, 5, -18, 1, -13, 0],
    },
    // 1.90 steps, 2.94 bits, 0.068 above the rate-distortion bound
    Spread {
        together: 1,
        first: 58,
        shares: &[
            36, 137, 523, 1129, 2186, 3749, 3814, 2231, 1212, 999, 273, 71, 22, 2,
        ],
        means: &[12, 2, 3, 26, -17, -27, 7, 32, 7, -22, 3, -8, 0, 0],
    },
    // 2.26 steps, 3.21 bits, 0.068 above the rate-distortion bound
    Spread {
        together: 1,
        first: 56,
        shares: &[
            11, 31, 112, 434, 558, 1150, 2108, 2227, 3669, 2195, 2019, 1061, 507, 225, 58, 17,
        ],
        means: &[0, 0, -4, 33, 15, -6, 6, -25, 19, 5, 4, -4, -43, -8, 1, 0],
    },
    // 2.69 steps, 3.47 bits, 0.063 above the rate-distortion bound
    Spread {
        together: 1,
        first: 55,
        shares: &[
            11, 31, 118, 249, 518, 981, 1789, 2022, 2217, 2255, 2130, 1900, 1033, 554, 271, 219,
            63, 10, 11,
        ],
        means: &[
            0, -59, -13, 32, -2, -15, -5, 22, 14, -3, -19, -18, 18, 17, -5, -22, 35, 0, 0,
        ],
    },
    // 3.20 steps, 3.71 bits, 0.065 above the rate-distortion bound
    Spread {
        together: 1,
        first: 52,
        shares: &[
            2, 11, 26, 41, 88, 176, 329, 591, 1062, 1111, 1901, 1971, 1976, 1948, 1871, 1084, 1013,
            576, 315, 163, 78, 37, 13,
        ],
        means: &[
            0, 0, 0, 25, 7, -12, -21, -19, 7, -21, -1, 4, -2, -4, 19, -1, 10, 19, 15, 3, -18, -45,
            0,
        ],
    },
    // 3.81 steps, 3.96 bits, 0.070 above the rate-distortion bound
    Spread {
        together: 1,
        first: 50,
        shares: &[
            3, 1, 16, 36, 68, 133, 241, 433, 510, 947, 1091, 1181, 1163, 1898, 1855, 1925, 1187,
            1140, 1021, 537, 464, 252, 136, 68, 38, 19, 16, 3, 2,
        ],
        means: &[
            0, 0, 0, 8, 0, -11, -15, 1, 10, -3, 23, 10, -38, -18, 6, 41, 12, -18, -17, 7, -17, 8,
            20, 14, -1, 0, 0, 0, 0,
        ],
    },
    // 4.53 steps, 4.21 bits, 0.071 above the rate-distortion bound
    Spread {
        together: 1,
        first: 47,
        shares: &[
            2, 2, 14, 15, 30, 53, 106, 129, 247, 276, 516, 565, 985, 1064, 1132, 1122, 1760, 1733,
            1091, 1133, 1107, 1035, 577, 550, 489, 269, 134, 124, 59, 33, 16, 8, 1, 2,
        ],
        means: &[
            0, 0, 0, 0, 0, 1, 12, 23, -7, -12, 14, 8, -15, 15, 10, -18, -42, 13, 47, 3, -14, -5,
            18, -15, 7, 0, 9, -24, 3, 5, 0, 0, 0, 0,
        ],
    },
    // 5.38 steps, 4.48 bits, 0.068 above the rate-distortion bound
    Spread {
        together: 1,
        first: 44,
        shares: &[
            2, 3, 2, 8, 14, 26, 49, 59, 111, 201, 228, 250, 471, 520, 536, 905, 982, 1069, 1140,
            1167, 1170, 1172, 1114, 1022, 941, 905, 533, 492, 450, 250, 216, 116, 103, 56, 44, 24,
            14, 11, 4, 2,
        ],
        means: &[
            0, 0, 0, 0, 0, 0, 23, 6, 6, 1, 20, -13, 11, 9, -29, -2, 12, 12, 11, 7, -1, -7, -13,
            -13, -7, 24, 2, -12, 13, -12, -20, 10, 4, -19, -8, 0, 0, 0, 0, 0,
        ],
    },
    // 6.40 steps, 4.72 bits, 0.066 above the rate-distortion bound
    Spread {
        together: 1,
        first: 41,
        shares: &[
            2, 4, 1, 8, 16, 19, 30, 57, 62, 117, 126, 230, 254, 273, 482, 527, 569, 615, 606, 981,
            958, 973, 1002, 1000, 992, 970, 954, 988, 611, 595, 553, 499, 279, 264, 241, 127, 120,
            108, 59, 33, 30, 17, 9, 13, 4, 2, 2,
        ],
        means: &[
            0, 0, 0, 0, 0, 0, 0, -10, -11, 22, 22, -1, 24, 2, -18, 17, 19, 2, -38, -12, 7, 6, 3,
            -1, -3, -6, 2, 37, 16, -11, -20, -2, 24, -15, -19, 9, -25, 4, -2, 18, 0, 0, 0, 0, 0, 0,
            0,
        ],
    },
    // 7.62 steps, 4.98 bits, 0.076 above the rate-distortion bound
    Spread {
        together: 1,
        first: 37,
        shares: &[
            2, 3, 3, 11, 9, 16, 19, 30, 35, 64, 73, 124, 137, 146, 252, 265, 294, 300, 497, 524,
            582, 618, 617, 594, 915, 870, 849, 853, 850, 884, 957, 622, 637, 593, 560, 516, 502,
            303, 282, 265, 145, 142, 130, 70, 71, 37, 36, 28, 17, 9, 8, 2, 4, 3, 2,
        ],
        means: &[
            0, 0, 0, 0, 0, 0, 0, 0, 12, -16, -9, -20, 17, 4, -18, 10, 5, -31, 1, 19, 22, 14, -6,
            -49, -21, -3, 0, -1, -1, 10, 47, 26, -5, -16, -18, -11, 24, 9, -10, -4, 20, -18, -11,
            18, 4, 23, -14, 0, 0, 0, 0, 0, 0, 0, 0,
        ],
    },
    // 9.06 steps, 5.24 bits, 0.079 above the rate-distortion bound
    Spread {
        together: 1,
        first: 32,
        shares: &[
            2, 3, 3, 5, 10, 9, 14, 18, 25, 30, 38, 63, 65, 68, 120, 130, 131, 232, 245, 258, 265,
            433, 428, 466, 502, 550, 584, 611, 640, 615, 565, 833, 812, 882, 594, 633, 632, 611,
            575, 524, 481, 437, 421, 264, 269, 249, 239, 135, 130, 120, 116, 66, 69, 37, 35, 27,
            17, 15, 9, 8, 2, 4, 3, 2,
        ],
        means: &[
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -11, 12, -20, 16, 22, -2, -27, 10, 15, -7, -27, 6, 14,
            15, 16, 15, 11, 5, -14, -57, -25, 8, 54, 34, 6, -5, -11, -15, -15, -14, -10, 4, 33, -2,
            -15, 3, 30, -12, -23, 13, -5, -8, 9, -9, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ],
    },
    // 10.77 steps, 5.49 bits, 0.073 above the rate-distortion bound
    Spread {
        together: 1,
        first: 27,
        shares: &[
            2, 2, 3, 5, 3, 8, 9, 14, 17, 18, 29, 34, 37, 68, 63, 67, 117, 118, 128, 135, 215, 218,
            245, 259, 272, 267, 414, 419, 443, 470, 500, 524, 550, 568, 588, 598, 600, 596, 602,
            593, 577, 559, 535, 518, 481, 453, 430, 412, 428, 271, 265, 256, 228, 219, 132, 133,
            123, 120, 70, 68, 63, 38, 39, 32, 29, 19, 15, 12, 8, 10, 4, 4, 3, 3, 2,
        ],
        means: &[
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 3, -23, 7, -12, -25, 16, 15, -10, -32, 4, 10, 11,
            -5, -42, -12, 4, 12, 13, 11, 9, 8, 5, 2, 3, 3, -1, -2, -1, -3, -7, -9, -9, -11, -13,
            -9, 3, 39, 20, -6, -13, -10, 8, 32, -8, -18, -6, 31, 6, -7, 21, -12, -20, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0,
        ],
    },
];
