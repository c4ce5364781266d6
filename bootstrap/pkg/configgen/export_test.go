package configgen

// Newer is the list of what came after Talos v1.12.
var Newer = newer
