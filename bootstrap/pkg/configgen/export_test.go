package configgen

// Newer is the list of what came after Talos v1.12.
var Newer = newer

// TrialSecrets makes the keys that specs are rendered with at admission.
var TrialSecrets = trialSecrets
